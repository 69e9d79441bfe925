"""Client side of MCP: the tools of MCP servers. Start with `server_tools`, the tool source.

server_tools              the tool source, and one tool for the dispatcher
definitions               names and definitions of a server's tools
servers                   lifecycle of one server
connections, sdk_messages one connection to a server, with the official SDK (imported lazily)
server_requests           requests from a server: elicitation and sampling
programs, processes       a local program: command line, packages, sandbox, early start
stdio, http, logins       transports, and OAuth
package_commands, managers, manager_settings, fetches, directories   steps of a package fetch
"""
