"""Requests to servers: a client that verifies certificates and follows no redirects, retries, a
browser login that returns to this machine, and safe excerpts of responses.
"""

from callgate.core.http import CONNECT_S as CONNECT_S
from callgate.core.http import Loopback as Loopback
from callgate.core.http import back_off as back_off
from callgate.core.http import is_loopback as is_loopback
from callgate.core.http import is_untrusted as is_untrusted
from callgate.core.http import open_client as open_client
from callgate.core.http import retry_after as retry_after
from callgate.redaction.texts import Masked as Masked
from callgate.redaction.texts import quoted as quoted
