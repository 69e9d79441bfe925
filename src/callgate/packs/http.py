"""Requests to servers elsewhere: a client that checks certificates and follows no redirect, when
to ask again, a login that comes back to this machine, and what may be shown of an answer."""

from callgate.outgoing.clients import CONNECT_S as CONNECT_S
from callgate.outgoing.clients import is_loopback as is_loopback
from callgate.outgoing.clients import is_untrusted as is_untrusted
from callgate.outgoing.clients import open_client as open_client
from callgate.outgoing.loopback import Loopback as Loopback
from callgate.outgoing.retries import back_off as back_off
from callgate.outgoing.retries import retry_after as retry_after
from callgate.outgoing.said import Masked as Masked
from callgate.outgoing.said import quoted as quoted
