"""Back-tests: what other settings would have decided about the calls on record. Pure.

    inputs           what whoever asks has to give: settings, records, tools, workspaces
    recorded_calls   what a record still knows of a call
    rejudging        what one set of settings decides about such a call
    backtests        both sets over all records, and what differs

`config.backtest_inputs` reads the settings; the surfaces put the two together.
"""
