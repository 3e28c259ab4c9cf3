package main

import (
	"context"

	"github.com/outboxcdc/outboxcdc/test/debian"
	"github.com/outboxcdc/outboxcdc/test/pgfull"
	"github.com/outboxcdc/outboxcdc/test/pip"
)

// The versions of the components that the drill does not build. etcd has Debian's version.
const (
	patroniVersion = "4.1.5"
	psycopgVersion = "3.3.9"
)

// tools are the programs of a cluster.
type tools struct {
	postgres *pgfull.Build
	etcd     string
	python   string
	packages string // PYTHONPATH of Patroni
}

// fetchTools fetches the programs into the cache if they are not there yet.
func fetchTools(ctx context.Context, major string) (t tools, err error) {
	if t.postgres, err = pgfull.Fetch(ctx, major); err != nil {
		return t, err
	}
	if t.etcd, err = debian.Tool(ctx, "etcd-server", "etcd"); err != nil {
		return t, err
	}
	if t.python, err = pip.Python(); err != nil {
		return t, err
	}
	patroni := pip.Packages{
		Folder: "patroni-" + patroniVersion,
		Pins:   []string{"patroni[etcd3]==" + patroniVersion, "psycopg[binary]==" + psycopgVersion},
		Want:   "patroni",
	}
	t.packages, err = patroni.Fetch(ctx)
	return t, err
}
