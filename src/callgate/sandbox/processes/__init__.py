"""Start and end of a command: broker, keeper, output, measurement.

Start reading at `broker.py`. Modules that the broker loads use only the standard library."""
