"""Which tools there are: the port `ToolSource`, the checks of tools, and the registry over all."""
