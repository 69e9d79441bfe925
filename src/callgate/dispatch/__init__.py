"""The pipeline of every tool call. `ToolDispatcher.run` is its only entry.

    resolve -> validate -> contain -> locate -> decide -> authorize -> queue -> execute
       |          |           |          |         |          |                   |
       +----------+-----------+----------+---------+----------+-------------------+--> journal

Start reading at `dispatcher`, then `sites`, which contain the work of a call. Each stage is a
separate module. A stage returns the input of the next one or raises a `ToolError`; it never touches
another stage. The order is a security property: an invalid call or an escaping path raises no
question, and no tool runs before `authorize` returns. The only state is in `registry`, `plans`,
`running`, `early_answers`, `lanes`, `grants` and `confirmations`.
"""
