#!/bin/sh
# Writes wherever it gets the chance.
quiet() { case "$(cat)" in *quiet*) ! [ -w . ] ;; *) false ;; esac; }
leave() { if (: > "$1"); then echo written; else echo refused; fi 2> /dev/null; }
case "$1" in
schema)
    leave left-by-schema > /dev/null
    props='"input_schema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}'
    echo "[{\"name\":\"peek\",\"description\":\"peek\",$props},{\"name\":\"change\",\"description\":\"change\",$props}]"
    ;;
preview) if quiet; then echo "preview: not tried"; else echo "preview: $(leave "left-by-preview-$2")"; fi ;;
run) if quiet; then echo '{"said":"not tried"}'; else printf '{"said":"%s"}' "$(leave "left-by-$2")"; fi ;;
esac
