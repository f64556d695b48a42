module cleanrl.devcluster/pause

go 1.26.0
