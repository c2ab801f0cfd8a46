"""Workers that outlive the round: in this process, spawned, or Ray's."""
