"""The WebSocket of events: who reads what. `websocket.py` is one client."""
