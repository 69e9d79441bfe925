"""Host lists in settings, kinds of addresses, and name resolution."""

from callgate.sandbox.allowed_hosts import AllowedHost as AllowedHost
from callgate.sandbox.allowed_hosts import find as find
from callgate.sandbox.allowed_hosts import is_address as is_address
from callgate.sandbox.allowed_hosts import is_private as is_private
from callgate.sandbox.allowed_hosts import is_public as is_public
from callgate.sandbox.allowed_hosts import look_up as look_up
from callgate.sandbox.allowed_hosts import normal_host as normal_host
from callgate.sandbox.allowed_hosts import parse as parse
from callgate.sandbox.allowed_hosts import split as split
