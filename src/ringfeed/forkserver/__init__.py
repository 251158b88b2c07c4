"""Workers that are forked from a process that holds the dataset: start_method="forkserver" and "fork".

    consumer ──▶ Forkserver, Fork (orders, answers) ──▶ main (the process) ──fork──▶ worker, as `workers` has it
                 launchers   fork                         ▲
                     └─────▶ warm ──▶ warm_main ──fork────┘   one for all loaders, which has imported and holds nothing

`workers` starts its processes by a `Launcher`; these are two of them, imported where a loader asks for them. Imports
`workers`, `transport` and what lies below.
"""
