package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// goTest leaves vet to `make lint`. The time-out is for what hangs: Go's own ten minutes end what only waits for a busy
// machine.
func goTest(args ...string) []string {
	return append([]string{"go", "test", "-json", "-vet=off", "-timeout", "1h"}, args...)
}

// packages are the stages of the product's own packages: those that the tier runs in part, and those that it runs as a
// whole. Two packages run at a time, whatever the machine: several of them start servers. The model, which keeps both
// cores busy, and the integration tests are stages of their own.
func (t tier) packages(ctx context.Context, flags ...string) (lane, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	args := slices.Concat(goTest("-p", "2"), flags)
	var l lane
	var some, whole []string
	for pkg := range strings.FieldsSeq(string(out)) {
		switch name := shortName(pkg); {
		case name == "test/integration" || name == "test/model" || !t.has(name) || choices()[name].short && t == rest:
		case choices()[name].short && t == quick:
			l = append(l, stage{name: "short " + name, args: slices.Concat(args, []string{"-short"}, paths([]string{name}))})
		case choices()[name].whole:
			whole = append(whole, name)
		default:
			some = append(some, name)
		}
	}
	slices.SortStableFunc(some, func(a, b string) int { return slices.Index(longest, b) - slices.Index(longest, a) })
	l = append(l, stage{name: "packages", args: slices.Concat(args, t.flags(some...), paths(some))})
	if len(whole) > 0 {
		l = append(l, stage{name: "whole packages", args: append(args, paths(whole)...)})
	}
	return l, nil
}

// longest are packages that start before all others, the last one first: none of them runs alone in the end.
var longest = []string{"internal/retention", "sink/kafka", "cmd/outboxcdc", "internal/outboxtable", "internal/doctor"}

func paths(names []string) []string {
	var out []string
	for _, name := range names {
		out = append(out, "./"+name)
	}
	return out
}

// integration is the stage of the built binary on real servers. Most tests wait for servers more than they work: more
// run at a time than there are cores, and in `make test-rest`, whose other stages end long before, more still.
func (t tier) integration(only string) stage {
	parallel := "6"
	if t == rest {
		parallel = "8"
	}
	args := goTest("-parallel", parallel, "-count=1")
	if only != "" {
		return stage{name: "integration", args: append(args, "-run", only, "./test/integration")}
	}
	return stage{name: "integration", args: slices.Concat(args, t.flags("test/integration"), []string{"./test/integration"})}
}

// ends are the modules of applications with real servers and the built daemon.
func (t tier) ends(only string) stage {
	args := goTest("-count=1", "-parallel", "4")
	if only != "" {
		args = append(args, "-run", only)
	} else {
		args = append(args, t.flags("test/ends/inbox", "test/ends/outbox", "test/ends/effect", "test/ends/tasks")...)
	}
	return stage{name: "ends", dir: "test/ends", env: alone, args: append(args, "./...")}
}

// alone is for modules as their users see them: without the workspace.
var alone = []string{"GOWORK=off"}

// application is a module for applications by itself.
func application(dir string, flags ...string) stage {
	return stage{name: dir, dir: dir, env: alone, args: slices.Concat(goTest("-p", "2", "-count=1"), flags, []string{"./..."})}
}

// outside is a module whose tests read files outside of it, so a cached result would not know of a change.
func outside(dir string) stage {
	return stage{name: dir, dir: dir, args: goTest("-count=1", "./...")}
}

// simulator runs more histories than `make test`, and fewer than `make prove`. The other tests of relay are whole in
// `make test`.
var simulator = stage{name: "simulator", env: []string{"OUTBOXCDC_TEST_SIM=1000"}, args: goTest("-short", "-run", "^TestSim", "./relay")}

// model keeps both cores busy, and must not take them from tests that wait for servers.
var model = stage{name: "model", args: append(low, goTest("-parallel", "2", "./test/model")...)}

var low = []string{"nice", "-n", "10"}

// racePackages have goroutines that share memory.
var racePackages = []string{
	"./replication", "./sink/kafka", "./sink/kafka/deadletter", "./sink/kafka/sender", "./internal/audit", "./internal/progress", "./internal/peek",
}

// oneGoroutine are tests of these packages and of relay that compute, or ask a server, in one goroutine. Under the
// race detector they are the longest ones, and show nothing.
const oneGoroutine = "^(TestAckToConfirmed|TestBugBackoff.*|TestBackoff.*|TestSimAudit|TestConfirmedInEveryOrder|" + // relay
	"TestGuard.*|TestHidden.*|TestInherited|TestCopy.*|TestSimilar|TestRemovedSegment|TestStandbyComparesPublications|TestOpenErrors|TestPacedRandom|" + // replication
	"TestRowsOfATableThatIsNotAttached|TestUnloggedPartition|TestResolveDistinguishesTables|TestOtherPublication|TestLockedPartition|TestUnfinishedRecovery|" +
	"TestSameAsAsyncProducer|" + // sink/kafka
	"TestComparison|TestDeletedByPartition|TestSorter|TestRandomHistories|" + // internal/audit
	"TestPeekSlowReader)$" // internal/peek

// race is the race detector. The long tests add servers, not goroutines, and the simulator's runs are ten times
// slower: few are enough for what only the detector sees.
func race() lane {
	var short []string
	for _, pkg := range racePackages {
		short = append(short, strings.TrimPrefix(pkg, "./"))
	}
	skip := oneGoroutine
	if left := quick.flags(short...); len(left) == 2 {
		skip += "|" + left[1]
	}
	return lane{
		{name: "race relay", args: goTest("-short", "-race", "-skip", oneGoroutine, "./relay")},
		{name: "race", args: slices.Concat(goTest("-p", "2", "-race", "-skip", skip), racePackages)},
		application("inbox", "-race"),
		application("outbox", "-race"),
	}
}

// tiers are the targets that run a tier.
var tiers = map[string]tier{"test": quick, "rest": rest, "all": all}

// planOf returns the plan of a target.
func planOf(ctx context.Context, target, only string) (plan, error) {
	if t, ok := tiers[target]; ok {
		packages, err := t.packages(ctx)
		if err != nil {
			return nil, err
		}
		return t.plan(packages), nil
	}
	switch target {
	case "unit": // no servers
		packages, err := all.packages(ctx, "-short")
		return plan{append(packages, application("outbox"), application("outbox/registry"), application("inbox"), application("inbox/riverinbox"))}, err
	case "race":
		return plan{race()}, nil
	case "integration":
		return plan{{all.integration(only)}}, nil
	case "ends":
		return plan{{application("outbox"), application("outbox/registry"), application("inbox"), application("inbox/riverinbox"), all.ends(only)}}, nil
	case "compose":
		return plan{{outside("test/compose")}}, nil
	case "helm":
		return plan{{outside("test/helm")}}, nil
	}
	return nil, fmt.Errorf("there is no target %q", target)
}

// plan returns what `make test`, `make test-rest` and `make test-all` run. All of it waits for servers more than it
// works, so the built binary, the packages and the other modules run side by side.
func (t tier) plan(packages lane) plan {
	var modules lane
	if t != rest {
		modules = lane{application("outbox"), application("outbox/registry"), application("inbox"), application("inbox/riverinbox"), outside("test/compose")}
	}
	modules = append(modules, t.ends(""))
	if t == rest {
		modules = append(modules, simulator)
	}
	if t != quick {
		modules = append(modules, outside("test/helm"), model)
	}
	return plan{{t.integration("")}, packages, modules}
}
