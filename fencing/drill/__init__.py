"""``manage.py fencing drill``: real processes pause, die and are resumed, and a checker says what the database let through.

A fencing set-up that has never refused a real stale write is unverified.

    plan        what a drill does, as its processes are told
    scratch     its table, its namespace, and how all of it is removed
    faults      pauses and deaths of a process
    work        what one process does: leases and writes
    worker      a process: its jobs, one after the other
    warm        what those processes are forked from, on Linux
    conductor   starts, wakes and replaces the processes, and lets the store forget
    journal     what each process notes, line by line
    attempts    what was noted, attempt by attempt
    histories   all attempts, the rows and the records that a drill left
    checker     from histories to violations: pure functions
    chain       of those, the ones about the order of grants and of a row's versions
    play        all of it, from the beginning to the end
    report      a table, a verdict, timelines
"""
