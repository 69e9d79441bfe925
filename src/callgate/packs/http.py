"""Requests to servers elsewhere: a client that checks certificates and follows no redirect, when
to ask again, a login that comes back to this machine, and what may be shown of an answer."""

from callgate.http_client.clients import CONNECT_S as CONNECT_S
from callgate.http_client.clients import is_loopback as is_loopback
from callgate.http_client.clients import is_untrusted as is_untrusted
from callgate.http_client.clients import open_client as open_client
from callgate.http_client.loopback import Loopback as Loopback
from callgate.http_client.retries import back_off as back_off
from callgate.http_client.retries import retry_after as retry_after
from callgate.http_client.server_text import Masked as Masked
from callgate.http_client.server_text import quoted as quoted
