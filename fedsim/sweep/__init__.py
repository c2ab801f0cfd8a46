"""`fedsim sweep FILE`: one experiment file, many cells.

A sweep file is an experiment file with a table `[sweep]`. Each key of that table is an axis, and every
combination of the axes' values is a cell, which is played with all `seeds` of the file:

    seeds = [0, 1, 2]
    rounds = 60
    attack = { kind = "honest", malicious = 2, participation = "forced", window = [11, 30] }

    [sweep]                                          # a key of the file (quoted, where it is deep): values
    "client.optimizer.learning_rate" = [0.05, 0.2]

    [sweep.attack]                                   # a key of the file; each value has a name
    none    = { kind = "honest" }
    badnets = { kind = "badnets", target = 0 }

    [sweep.defence]                                  # no key of the file: each value is a table of changes
    mean = { strategy = "fedavg" }
    krum = { strategy = { kind = "krum", byzantine = 2 }, rounds = 80 }

    [sweep.report]                                   # optional; axes and metrics of the tables and pictures
    rows = "attack"
    columns = "defence"
    metrics = ["test_accuracy.last", "attack_success.auc50", "detector.f1"]
    compare = "defence=mean"

A value that is a table changes single keys of the table in the file. Where it names another `kind`, keys that
only the old kind has are left out; all others stay, so that `malicious` and `window` are said once. Two axes
may not set the same key.

Everything is checked before the first cell is played. A cell of one seed lives under the digest of what can
touch its numbers, `runs/DIGEST/seed-N`, so a later sweep into the same folder plays only what is new. The
clean run beside an attack is played once for all cells which share it, and an honest cell with the same
members, participation and window is that clean run.

What other code made is played again, unless `--any-code` keeps it: the sources of the four packages, but for
what only shows results, and of plugins from elsewhere count (`fedsim.run.code`).

A metric that no cell can measure is refused before the first cell is played. Lifespans are means over runs
whose success at the stop is at least one half, and `compare` compares them over pairs whose success at the
stop is at most `matched` (0.1) apart.

Where methods need tuning, `tune` in the report settles axes: `tune = "client.optimizer.learning_rate"` keeps,
for each cell of the other axes, the value with the best mean of `by` (`client_val_accuracy.best`) over seeds.
"""
