package main

import (
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plantstore/cmd/internal/witness"
	"plantstore/internal/localpg"
)

const second = time.Second

// answered is a deletion's history from start on. Each request takes a second.
func answered(plant int64, start time.Duration, answers ...witness.Answer) witness.Deletion {
	d := witness.Deletion{Plant: plant, Key: "key"}
	for i, a := range answers {
		a.Start = start + time.Duration(i)*second
		a.End = a.Start + second
		d.Answers = append(d.Answers, a)
	}
	return d
}

var (
	yes         = witness.Answer{Status: 204}
	unavailable = witness.Answer{Status: 503, Code: 50300}
)

// madeUp is a drill of two events: a planned one, which was not noticed, and one that
// cost an answer.
func madeUp() *report {
	d := answered(2, 12*second, unavailable, yes)
	d.Late = []witness.Answer{{Start: 14 * second, End: 17 * second, Status: 204, Replayed: true}}
	return &report{
		versions: "PostgreSQL 15.0", synchronous: true, timeout: 5 * second, checked: true,
		events: []happening{
			{name: "switchover", Span: witness.Span{Start: 0, End: 10 * second}, struck: witness.Span{Start: 2 * second, End: 4 * second}},
			{name: "kill", kind: fault, Span: witness.Span{Start: 10 * second, End: 20 * second}, struck: witness.Span{Start: 12 * second, End: 13 * second}},
		},
		history: []witness.Deletion{answered(1, 3*second, yes), d},
		state:   witness.State{Ledger: map[int64][]witness.Entry{1: {{By: principal}}, 2: {{By: principal}}}},
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := madeUp()
	r.violations = []witness.Violation{{Rule: "a", Plant: 2, Text: "204, and the plant is there"}}
	var got strings.Builder
	r.print(&got)
	want := `
PostgreSQL 15.0, synchronous replication, 16 clients, 100 deletions a second at most, request timeout 5s.

| event | took | requests | answers | failed | slowest | longest without a 204 | violations |
|:--|--:|--:|:--|--:|--:|--:|--:|
| switchover | 2.0 s | 1 | 204: 1 | 0 | 1.0 s | 6.0 s | 0 |
| kill | 1.0 s | 3 | 204: 2, 503 50300: 1 | 1 | 3.0 s | 4.0 s | 1 |

2 plants asked for, 2 rows in the ledger, 1 violations.
(a) plant 2: 204, and the plant is there
`
	if diff := cmp.Diff(want, got.String()[:min(len(want), got.Len())]); diff != "" {
		t.Errorf("the report (-want +got):\n%s", diff)
	}
}

// TestReportWithoutCheck is about a drill that could not read the database in the end: the
// report has the answers, and does not call them free of violations.
func TestReportWithoutCheck(t *testing.T) {
	t.Parallel()
	r := madeUp()
	r.checked = false
	var got strings.Builder
	r.print(&got)
	if want := "| kill | 1.0 s | 3 | 204: 2, 503 50300: 1 | 1 | 3.0 s | 4.0 s | ? |\n\n2 plants asked for. The answers were not checked.\n"; !strings.HasSuffix(got.String(), want) {
		t.Errorf("the report is\n%s\nwant it to end with\n%s", &got, want)
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*report)
		want   string // part of the error; empty: none
	}{
		{"well", func(*report) {}, ""},
		{"a violation", func(r *report) { r.violations = []witness.Violation{{Rule: "a"}} }, "1 violations"},
		{"a loss that had to be", func(r *report) {
			r.synchronous, r.events[1].kind, r.violations = false, loss, []witness.Violation{{Rule: "a", Plant: 2}}
		}, ""},
		{"a loss that was not seen", func(r *report) { r.synchronous, r.events[1].kind = false, loss }, "saw no loss"},
		{"a loss beside the one that had to be", func(r *report) {
			r.synchronous, r.events[1].kind, r.violations = false, loss, []witness.Violation{{Rule: "a", Plant: 1}, {Rule: "a", Plant: 2}}
		}, "1 violations"},
		{"a violation beside all events", func(r *report) { r.synchronous, r.violations = false, []witness.Violation{{Rule: "c", Plant: 3}} }, "1 violations"},
		{"an event that failed", func(r *report) { r.failure = errors.New("not well") }, "not well"},
		{"a planned event that was noticed", func(r *report) { r.events[1].kind = planned }, "kill: 1 answers other than 204"},
		{"an answer that came too late", func(r *report) { r.timeout = second }, "kill: an answer took 3.0 s"},
		{"no load", func(r *report) { r.history = r.history[1:] }, "switchover: there was no load"},
	} {
		r := madeUp()
		test.change(r)
		err := r.outcome()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got error %v, want one with %q", test.name, err, test.want)
		}
	}
}

// TestLostCommit is about a failover of asynchronous replication: the client has its 204, and
// the plant is there, without a row in the ledger.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	r := witness.Run{Principal: principal, History: []witness.Deletion{answered(1, 0, yes)}}
	found := r.Check(witness.State{Plants: map[int64]bool{1: true, 2: true}}, 1, 2)
	if len(found) == 0 || found[0].Rule != "a" {
		t.Errorf("violations %+v, want some of rule a", found)
	}
}

func TestWhetherTheClusterIsWell(t *testing.T) {
	t.Parallel()
	primary := member{Name: "pg1", Role: "leader", State: "running", Timeline: 2}
	standby := member{Name: "pg2", Role: "sync_standby", State: "streaming", Timeline: 2}
	replica := member{Name: "pg3", Role: "replica", State: "running", Timeline: 2}
	behind := replica
	behind.Timeline = 1
	starting := standby
	starting.State = "starting"
	for _, test := range []struct {
		name    string
		members []member
		want    string
	}{
		{"well", []member{primary, standby, replica}, ""},
		{"no synchronous standby", []member{primary, replica, replica}, "no synchronous standby"},
		{"two nodes", []member{primary, standby}, "2 nodes"},
		{"no primary", []member{standby, replica, replica}, "0 primaries"},
		{"one on an old timeline", []member{primary, standby, behind}, "pg3, a replica, is running on timeline 1 of 2"},
		{"one is starting", []member{primary, starting, replica}, "pg2, a sync_standby, is starting"},
	} {
		if got := unwell(test.members, true); !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
	if got := unwell([]member{primary, replica, replica}, false); got != "" {
		t.Errorf("asynchronous: got %q, want nothing", got)
	}
}

// TestEnded is about a program that ends by itself: waiting for it fails at once, with its log.
func TestEnded(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "lb-haproxy.log")
	if err := os.WriteFile(log, []byte("first line\nCannot raise FD limit\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var processes []*localpg.Process
	for _, script := range []string{"exit 3", "exec sleep 600"} {
		p, err := localpg.StartProcess(exec.Command("sh", "-c", script), syscall.SIGKILL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		processes = append(processes, p)
	}
	<-processes[0].Done()
	n := &network{running: map[string]*localpg.Process{"runs": processes[1]}}
	if err := n.ended(); err != nil {
		t.Errorf("of a program that runs: %v", err)
	}
	n.running[log] = processes[0]
	err := until(t.Context(), "HAProxy does not answer", n.ended)
	if err == nil || !strings.Contains(err.Error(), "lb-haproxy.log: exit status 3: first line\nCannot raise FD limit") {
		t.Errorf("got error %v, want one with the log's end", err)
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-programs", "x", "-events", "flood"}, `no event "flood"`},
		{[]string{"-programs", "x", "-synchronous", "perhaps"}, "want on or off"},
		{[]string{"-programs", "x", "-request-timeout", "2m"}, "-request-timeout"},
		{[]string{"-programs", "x", "-events", "restart", "etcd"}, `no argument "etcd"`},
		{[]string{"-programs", "x", "-events", "restart", "-synchronous", "off"}, "add primary-cut"},
		{nil, "make drill"},
		{[]string{"-h"}, flag.ErrHelp.Error()},
	} {
		if _, err := parse(test.args, io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("drill %v: got error %v, want one with %q", test.args, err, test.want)
		}
	}
	c, err := parse([]string{"-programs", "x", "-events", "etcd,restart"}, io.Discard)
	if err != nil || len(c.events) != 2 || c.events[0].name != "etcd" || c.events[1].name != "restart" {
		t.Errorf("events %+v (%v), want etcd and restart", c.events, err)
	}
}

// TestConfigurations fills in the files that the manual recommends.
func TestConfigurations(t *testing.T) {
	t.Parallel()
	patroni, err := fill(patroniFile, struct {
		Name, IP, Folder, API, Etcd, Programs, Password, Operator string
		Synchronous                                               bool
	}{Name: "pg1", API: "etcd3", Etcd: "10.77.0.11:2379", Synchronous: true})
	if err != nil || !strings.Contains(string(patroni), "\netcd3:\n  hosts: [10.77.0.11:2379]\n") || !strings.Contains(string(patroni), "synchronous_mode: true") {
		t.Errorf("patroni.yml (%v) is\n%s", err, patroni)
	}
	haproxy, err := fill(haproxyFile, struct {
		Address, Port, Admin string
		Replicas             []*replica
	}{"10.77.0.31:8080", port, adminPort, []*replica{{machine: &machine{Name: "app1", IP: "10.77.0.21"}}}})
	if err != nil || strings.Count(string(haproxy), "\n    server app1 10.77.0.21:8080\n") != 2 {
		t.Errorf("haproxy.cfg (%v) is\n%s", err, haproxy)
	}
}

func TestEtcdAPI(t *testing.T) {
	t.Parallel()
	for patroni, want := range map[string]string{"3.0.2": "etcd", "4.0.5": "etcd", "4.0.6": "etcd3", "4.1.0": "etcd3", "10.0.0": "etcd3"} {
		if got := etcdAPI(patroni); got != want {
			t.Errorf("Patroni %s: got %s, want %s", patroni, got, want)
		}
	}
}
