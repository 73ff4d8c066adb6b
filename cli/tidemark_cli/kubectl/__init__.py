"""`kubectl tidemark`: the plugin; everything it does are objects and fields, so that roles and audit logs hold.

    commands   the program              options    what every command takes
    showing    looking: status, nodes, shards, explain-shard, plan, version
    acts       new Reconfigurations     control    those there are, restarts, pauses
    report     one file to attach       redaction  what is left out of it
    explain    why it does not move     pods       what is wrong with a pod        planning   the moves of a plan
    state      one cluster as its objects tell it
    server     reading and writing objects

explain, pods, planning, redaction and state are pure.
"""
