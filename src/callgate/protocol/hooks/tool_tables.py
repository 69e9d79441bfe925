"""The tools of each agent: the callgate tool or effect class of each, and every argument it takes.

    NAME  KIND  ARGUMENTS

    shell write edit read list find search fetch patch   read as a call of a callgate tool
    none                       bookkeeping inside the agent; its own checks stay in force
    skill                      can run commands of a repository; see `asks_itself`
    read_class write_class network execute    a tool of that class without a counterpart here

An argument marked with `?` turns the call into one of class `execute`. An argument that is not in
the table is unknown: callgate cannot tell what it changes. `tests/agents` compares the rows with
the tools that the real programs offer to their model.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

CLASSES = frozenset(("none", "skill", "read_class", "write_class", "network", "execute"))
"""The kinds that have no counterpart among the callgate tools."""


class ToolRow(msgspec.Struct, frozen=True):
    """One tool of one agent."""

    kind: str
    arguments: frozenset[str]
    executing: frozenset[str] = frozenset()
    """Arguments that make the call one of class `execute`."""


_GREP = "-i -n -A -B -C context head_limit offset multiline type output_mode"

_CLAUDE = f"""
Bash              shell   command timeout description run_in_background dangerouslyDisableSandbox
Monitor           shell   command description timeout_ms persistent ?ws
Write             write   file_path content
Edit              edit    file_path old_string new_string replace_all
MultiEdit         edit    file_path edits
Read              read    file_path offset limit pages allow_large
LS                list    path ignore
Glob              find    pattern path
Grep              search  pattern path glob {_GREP}
WebFetch          fetch   url prompt offset
NotebookEdit      write_class  notebook_path cell_id cell_number new_source cell_type edit_mode
NotebookRead      read_class   notebook_path cell_id
WebSearch         network query allowed_domains blocked_domains
Skill             skill   skill args
SlashCommand      skill   command
Agent             none    description prompt subagent_type model effort run_in_background resume
                          max_turns name ?isolation ?mode ?team_name
Task              none    description prompt subagent_type model run_in_background resume max_turns
                          ?isolation ?mode ?team_name ?name
AskUserQuestion   none    questions answers annotations metadata
EnterPlanMode     none
ExitPlanMode      none    plan allowedPrompts planFilePath launchSwarm teammateCount
TodoWrite         none    todos
TodoRead          none
TaskCreate        none    subject description activeForm metadata
TaskGet           none    taskId
TaskList          none
TaskUpdate        none    taskId subject description activeForm status addBlocks addBlockedBy owner
                          metadata
TaskOutput        none    task_id block timeout
TaskStop          none    task_id shell_id
BashOutput        none    bash_id filter
KillShell         none    shell_id
KillBash          none    shell_id
ToolSearch        none    query max_results
DeferredToolPlaceholder none
ListAgents        none    channel q
ReportFindings    none    level findings
ScheduleWakeup    none    delaySeconds reason prompt stop noop
CronList          none
CronCreate        execute cron prompt recurring durable
CronDelete        execute id
EnterWorktree     execute name path
ExitWorktree      execute action discard_changes
SendMessage       execute to summary message notify_when_idle
Workflow          execute script name description title args scriptPath resumeFromRunId
"""

_CODEX = """
Bash              shell   command
exec_command      shell   cmd workdir justification login max_output_tokens prefix_rule shell tty
                          sandbox_permissions yield_time_ms
shell             shell   command workdir timeout_ms justification sandbox_permissions prefix_rule
                          with_escalated_permissions
local_shell       shell   command workdir timeout_ms
apply_patch       patch   command input patch
view_image        read    path detail
update_plan       none    plan explanation
request_user_input none   questions
get_goal          none
create_goal       none    objective token_budget
update_goal       none    status
wait_agent        none    targets timeout_ms
close_agent       none    target
spawn_agent       execute fork_context items message model reasoning_effort
send_input        execute interrupt items message target
resume_agent      execute id
write_stdin       execute chars max_output_tokens session_id yield_time_ms
web_search        network
"""

_GEMINI = """
run_shell_command shell   command description dir_path directory is_background delay_ms
                          wait_for_previous
write_file        write   file_path content
replace           edit    file_path instruction old_string new_string allow_multiple
                          expected_replacements
read_file         read    file_path absolute_path start_line end_line offset limit
list_directory    list    dir_path path ignore file_filtering_options respect_git_ignore
glob              find    pattern dir_path path case_sensitive respect_git_ignore
                          respect_gemini_ignore
grep_search       search  pattern dir_path path include include_pattern exclude_pattern names_only
                          max_matches_per_file total_max_matches case_sensitive fixed_strings
                          context after before no_ignore
search_file_content search pattern dir_path path include include_pattern
web_fetch         fetch   prompt url
google_web_search network query
activate_skill    none    name
invoke_agent      none    agent_name prompt wait_for_previous
write_todos       none    todos
update_topic      none    title summary strategic_intent wait_for_previous
ask_user          none    questions
enter_plan_mode   none    reason
exit_plan_mode    none    plan_path plan_filename
list_background_processes none wait_for_previous
read_background_output none pid lines delay_ms wait_for_previous
complete_task     none    result output
"""

_QWEN = """
run_shell_command shell   command is_background timeout description directory
monitor           shell   command description max_events idle_timeout_ms directory
write_file        write   file_path content record_as_artifact
edit              edit    file_path old_string new_string replace_all
replace           edit    file_path old_string new_string replace_all expected_replacements
read_file         read    file_path absolute_path offset limit pages
list_directory    list    path ignore file_filtering_options
glob              find    pattern path
grep_search       search  pattern glob path limit
web_fetch         fetch   url prompt format
notebook_edit     write_class notebook_path cell_id new_source cell_type edit_mode
zoom_image        read    file_path x1 y1 x2 y2
skill             skill   skill args
agent             none    description prompt subagent_type fork_turns fork_tools fork_profile
                          run_in_background ?isolation ?working_dir
task              none    description prompt subagent_type
todo_write        none    todos
tool_search       none    query max_results
get_goal          none
update_goal       none    status reason blockerKind
list_agents       none
report_findings   none    level findings
cron_list         none
task_stop         none    task_id
loop_wakeup       none    delaySeconds prompt reason
ask_user_question none    questions metadata
exit_plan_mode    none    plan
enter_plan_mode   none    reason
tool_call         execute name arguments
cron_create       execute cron prompt recurring durable sessionMode
cron_delete       execute id
enter_worktree    execute name
exit_worktree     execute name action discard_changes
send_message      execute to task_id message summary
"""

_KIMI = """
Bash              shell   command cwd timeout description run_in_background disable_timeout
Write             write   path content mode
Edit              edit    path old_string new_string replace_all
Read              read    path line_offset column_offset n_lines max_chars
Glob              find    pattern path head_limit offset include_ignored include_dirs
Grep              search  pattern path glob type output_mode -i -n -A -B -C head_limit offset
                          multiline include_ignored
FetchURL          fetch   url
Shell             shell   command cwd timeout run_in_background description
WriteFile         write   path content mode
StrReplaceFile    edit    path edit
ReadFile          read    path line_offset n_lines
ReadMediaFile     read    path
Skill             none    skill args
Agent             none    prompt description subagent_type resume run_in_background
AgentSwarm        none    description subagent_type prompt_template items resume_agent_ids
Task              none    description prompt subagent_name
AskUserQuestion   none    questions background
EnterPlanMode     none
ExitPlanMode      none    options
TodoList          none    todos
SetTodoList       none    todos
Think             none    thought
CreateGoal        none    objective completionCriterion replace
GetGoal           none
UpdateGoal        none    status
SetGoalBudget     none    value unit
TaskList          none    active_only limit
TaskOutput        none    task_id block timeout
TaskStop          none    task_id reason
WaitFor           none    timeout task_id
CronList          none
CronCreate        execute cron prompt recurring
CronDelete        execute id
"""

_OPENCODE = """
bash              shell   command workdir timeout description
write             write   filePath content
edit              edit    filePath oldString newString replaceAll
multiedit         edit    filePath edits
read              read    filePath offset limit
list              list    path ignore
glob              find    pattern path
grep              search  pattern path include
webfetch          fetch   url format timeout
apply_patch       patch   patchText
patch             patch   patchText
skill             none    name
task              none    description prompt subagent_type task_id command
question          none    questions
todowrite         none    todos
todoread          none
invalid           none    tool error
plan_enter        none
plan_exit         none
websearch         network query numResults livecrawl type contextMaxCharacters
"""

_VIBE = """
file_system.bash           shell   command timeout
file_system.write_file     write   path content overwrite
file_system.read_file      read    path offset limit
file_system.search_replace write_class file_path path content
file_system.grep           search  pattern path max_matches use_default_ignore
bash              shell   command timeout
write_file        write   path content overwrite
read_file         read    path offset limit
search_replace    write_class file_path path content
grep              search  pattern path max_matches use_default_ignore
todo              none    action todos
ask_user_question none    questions
"""

_CURSOR = """
Shell             shell   command working_directory workdir cwd timeout block_until_ms description
                          is_background required_permissions
Bash              shell   command working_directory workdir cwd timeout description is_background
                          run_in_background
Write             write   file_path path content contents
Edit              edit    file_path path old_string new_string replace_all
StrReplace        edit    file_path path old_string new_string replace_all
Delete            write_class file_path path
Read              read    file_path path target_file offset limit
LS                list    path target_directory ignore ignore_globs
Glob              find    pattern glob_pattern path target_directory
Grep              search  pattern path glob -i -n -A -B -C context head_limit offset multiline type
                          output_mode
WebFetch          fetch   url prompt
WebSearch         network query search_term explanation
TodoWrite         none    todos merge
ReadLints         none    paths
"""


def _rows(text: str) -> dict[str, ToolRow]:
    rows: dict[str, ToolRow] = {}
    for line in text.replace("\n  ", " ").split("\n"):
        if not (words := line.split()):
            continue
        name, kind, *arguments = words
        executing = {each[1:] for each in arguments if each.startswith("?")}
        known = {each.removeprefix("?") for each in arguments}
        rows[name.lower()] = ToolRow(kind, frozenset(known), frozenset(executing))
    return rows


TABLES: Mapping[str, Mapping[str, ToolRow]] = {
    "claude": _rows(_CLAUDE),
    "codex": _rows(_CODEX),
    "gemini": _rows(_GEMINI),
    "qwen": _rows(_QWEN),
    "kimi": _rows(_KIMI),
    "opencode": _rows(_OPENCODE),
    "vibe": _rows(_VIBE),
    "cursor": _rows(_CURSOR),
}

_NAMESPACE = "functions."
"""Some models put it before the name of a tool. A name before any other dot is not known, and
neither is the tool."""

_ASKING = frozenset(("default", "plan", "acceptEdits", "dontAsk"))
"""The permission modes in which Claude Code itself asks about a skill, or refuses it."""


def find_row(agent: str, tool: str) -> ToolRow | None:
    """Return the row of an agent's tool; None if the tool is not known.

    The names of other agents' tools are not known either: opencode and Vibe call the tool `file` of
    a server `read` `read_file`."""
    if not tool.isascii():  # lower-casing would make a known name of some others
        return None
    return TABLES[agent].get(tool.lower().removeprefix(_NAMESPACE))


def asks_itself(agent: str, permission_mode: str | None) -> bool:
    """Whether the agent asks the user before a skill runs commands, if a hook decides nothing."""
    return agent == "claude" and permission_mode in _ASKING
