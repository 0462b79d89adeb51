package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"plantstore/cmd/internal/witness"
)

// A drill is all that an event can happen to.
type drill struct {
	*cluster
	front     *front
	load      *load
	old, next string // programs: this release, and the next one
}

// An event is an operator's action or a failure.
type event struct {
	name, what string
	kind
	// strike makes it happen, and returns when it is over.
	strike func(context.Context, *drill) error
}

// A kind of events.
type kind int

const (
	planned kind = iota // clients must not notice
	fault
	loss // a fault that loses commits, unless replication is synchronous
)

// away is how long a lost machine stays away.
const away = 40 * time.Second

func allEvents() []event {
	return []event{
		{"restart", "rolling restart of the replicas", planned, func(ctx context.Context, d *drill) error {
			return d.front.roll(ctx, d.old)
		}},
		{"switchover", "planned switchover", planned, func(ctx context.Context, d *drill) error {
			return d.switchover(ctx)
		}},
		{"primary-cut", "primary's machine cut off, and back", loss, cutPrimaryOff},
		{"standby-cut", "synchronous standby's machine cut off, and back", fault, cutStandbyOff},
		{"primary-kill", "kill -9 of the primary", fault, killPrimary},
		{"etcd", "etcd without quorum, and back", fault, loseQuorum},
		{"migrate", "migration to the next release", planned, func(ctx context.Context, d *drill) error {
			return d.migrate(ctx, "up")
		}},
		{"password", "change of the password", planned, changePassword},
		{"upgrade", "rolling upgrade to the next release, and back", planned, upgrade},
	}
}

// chosen returns the events that a list names.
func chosen(list string) ([]event, error) {
	all := allEvents()
	if list == "all" {
		return all, nil
	}
	var events []event
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(e event) bool { return e.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no event %q", name)
		}
		events = append(events, all[i])
	}
	return events, nil
}

// calm is how long there is nothing but load before an event, and after it.
const calm = 5 * time.Second

// happen has one event happen under load, and returns when all is well again.
func (d *drill) happen(ctx context.Context, e event) (h happening, err error) {
	h = happening{name: e.what, kind: e.kind, Span: witness.Span{Start: d.load.now()}}
	witness.Sleep(ctx, calm)
	h.struck.Start = d.load.now()
	err = e.strike(ctx, d)
	if err == nil {
		err = d.untilWell(ctx)
	}
	if err == nil {
		err = d.front.untilReady(ctx)
	}
	h.struck.End = d.load.now()
	witness.Sleep(ctx, calm)
	h.End = d.load.now()
	if err != nil {
		err = fmt.Errorf("%s: %w", e.what, err)
	}
	return h, err
}

// cutPrimaryOff first cuts the primary off from the standbys. For a second it goes on serving:
// these commits are lost with it.
func cutPrimaryOff(ctx context.Context, d *drill) error {
	primary, err := d.primary(ctx)
	if err != nil {
		return err
	}
	var others []*machine
	for _, o := range d.others(primary) {
		others = append(others, o.machine)
	}
	if err := primary.lose(ctx, others...); err != nil {
		return err
	}
	witness.Sleep(ctx, time.Second)
	if err := primary.unplug(ctx); err != nil {
		return err
	}
	witness.Sleep(ctx, away)
	return errors.Join(primary.find(ctx, others...), primary.plug(ctx))
}

func cutStandbyOff(ctx context.Context, d *drill) error {
	standby, err := d.standby(ctx)
	if err != nil {
		return err
	}
	if err := standby.unplug(ctx); err != nil {
		return err
	}
	witness.Sleep(ctx, away)
	return standby.plug(ctx)
}

func killPrimary(ctx context.Context, d *drill) error {
	primary, err := d.primary(ctx)
	if err != nil {
		return err
	}
	return primary.killPostgres()
}

// loseQuorum ends the members of etcd on the standbys' machines.
func loseQuorum(ctx context.Context, d *drill) error {
	primary, err := d.primary(ctx)
	if err != nil {
		return err
	}
	for _, n := range d.others(primary) {
		n.etcd.Kill()
	}
	witness.Sleep(ctx, away)
	for _, n := range d.others(primary) {
		if err := n.startEtcd(d.cluster); err != nil {
			return err
		}
	}
	return nil
}

// migrate runs a command of the next release's migration, as a DBA does.
func (d *drill) migrate(ctx context.Context, command string) error {
	cmd := exec.CommandContext(ctx, d.next, "migrate", command)
	cmd.Env = append(os.Environ(),
		"PLANTSTORE_MIGRATE_DATABASE_URL="+d.url("plantstore_owner", database))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("plantstore migrate %s: %w: %s", command, err, bytes.TrimSpace(out))
	}
	return nil
}

// sessions selects the service's sessions.
const sessions = `FROM pg_stat_activity WHERE usename = 'plantstore_app'`

// changePassword changes the password in the database and, a second later, in the file of
// each replica. Then it ends all sessions, so that the replicas need the new password.
func changePassword(ctx context.Context, d *drill) error {
	if err := d.front.setPassword(ctx, d.front.password+"-next"); err != nil {
		return err
	}
	witness.Sleep(ctx, time.Second)
	for _, r := range d.front.replicas {
		if err := r.writeURL(); err != nil {
			return err
		}
	}
	ended, err := witness.Value[int](ctx, d.url("postgres", database), `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) `+sessions)
	if err == nil && ended == 0 {
		err = errors.New("the service had no session to end")
	}
	return err
}

func upgrade(ctx context.Context, d *drill) error {
	if err := d.migrate(ctx, "up"); err != nil {
		return err
	}
	if err := d.front.roll(ctx, d.next); err != nil {
		return err
	}
	witness.Sleep(ctx, calm)
	if err := d.front.roll(ctx, d.old); err != nil {
		return err
	}
	return d.migrate(ctx, "down")
}

// rest returns what the database holds when no session of the service is left.
func (d *drill) rest(ctx context.Context) (witness.State, error) {
	url := d.url("postgres", database)
	err := until(ctx, "sessions of the service do not end", func() error {
		left, err := witness.Value[int](ctx, url, `SELECT count(*) `+sessions)
		if err == nil && left > 0 {
			err = fmt.Errorf("%d left", left)
		}
		return err
	})
	if err != nil {
		return witness.State{}, err
	}
	return witness.ReadState(ctx, url)
}
