"""Sites contain the work of a call and locate its paths.

    Here      in this process or callgate's sandbox; the editor's terminal is one of its launchers
    Outside   in the process of a third-party agent (`Handover.place`): not in callgate's sandbox
    InPool    on the machine of a worker, which contains and locates the call itself

    prepare -> contain -> locate -> decide -> ensure -> (question, queue) -> launcher

Contain and locate are two steps, because a refusal in the second must still record the result of
the first. A site may restrict a call, never relax a decision. Start with `here`.
"""
