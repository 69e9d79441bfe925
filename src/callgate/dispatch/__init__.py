"""Every tool call goes through `ToolDispatcher.run`, and through nothing else.

    resolve -> validate -> confine -> authorize -> (lane) -> execute
       |          |           |           |                     |
       +----------+-----------+-----------+---------------------+--> journal -> ToolResult

Start reading at `dispatcher`; each stage is one module beside it. A stage returns what the
next one needs or raises a `ToolError`; it never touches another stage. The order is a
security property: an invalid or escaping call asks nobody, and nothing runs before
`authorize` has returned. `registry`, `plans`, `running`, `early_answers`, `lanes`, `grants` and
`confirmations` hold the only state there is.
"""
