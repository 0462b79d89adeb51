package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"plantstore/cmd/internal/programs"
	"plantstore/cmd/internal/witness"
)

// A drill has the cluster, the replicas and the clients of a drill.
type drill struct {
	*cluster
	*front
	crowd   *witness.Crowd
	history []witness.Deletion // by the clients, once endLoad has returned
	endLoad func() error       // ends the clients after their deletions
}

// An event is an operator's action or a failure.
type event struct {
	name, what string
	kind
	// strike makes the event happen, and returns when it is over.
	strike func(context.Context, *drill) error
}

// A kind of events.
type kind int

const (
	planned kind = iota // clients must not notice
	fault
	loss // a fault that loses commits, unless replication is synchronous
)

// allEvents returns all events that a drill can have.
func allEvents() []event {
	return []event{
		{"switchover", "planned switchover", planned, switchover},
		{"primary-cut", "primary's machine cut off, and back", loss, cutPrimaryOff},
		{"standby-cut", "synchronous standby's machine cut off, and back", fault, cutStandbyOff},
		{"primary-kill", "kill -9 of the primary", fault, killPrimary},
		{"etcd", "etcd without quorum, and back", fault, loseQuorum},
		{"password", "change of the password", planned, changePassword},
		{"upgrade", "migration and rolling upgrade to the next release, and back", planned, upgrade},
	}
}

const (
	principal  = "drill" // the name of the clients' token
	bystanders = 1000    // plants that nobody asks for, with the ids up to 0
	clients    = 16      // each with a key
	perSecond  = 100     // deletions at most, of all clients together
	// slack is how much longer than the request timeout a client waits for an answer.
	slack = 30 * time.Second
	// calm is how long there is nothing but load before an event, and after it.
	calm = 5 * time.Second
	// away is how long a lost machine stays away.
	away = 40 * time.Second
)

// startLoad stocks the store for a number of events, of five minutes at most, and starts the
// clients.
func (d *drill) startLoad(ctx context.Context, events int) error {
	owner := d.url("plantstore_owner")
	last := int64(events+1) * 300 * perSecond
	token, err := witness.Stock(ctx, owner, principal, 1-bystanders, last)
	if err != nil {
		return err
	}
	d.crowd = &witness.Crowd{
		Address: d.address(), Token: token, Patient: requestTimeout + slack,
		Began: time.Now(), Pace: rate.NewLimiter(perSecond, clients), Last: last,
		Late: true, Owner: func() string { return owner },
	}
	going, stop := context.WithCancel(ctx)
	asking, giveUp := context.WithCancel(ctx)
	var load errgroup.Group
	load.Go(func() (err error) {
		d.history, err = d.crowd.Delete(going, asking, clients)
		return err
	})
	d.endLoad = func() error {
		defer giveUp()
		stop()
		time.AfterFunc(patience, giveUp)
		return load.Wait()
	}
	return nil
}

// happen has one event happen under load, and returns when all is well again.
func (d *drill) happen(ctx context.Context, e event) (h happening, err error) {
	now := func() time.Duration { return time.Since(d.crowd.Began) }
	h = happening{name: e.what, kind: e.kind, Span: witness.Span{Start: now()}}
	programs.Sleep(ctx, calm)
	h.struck.Start = now()
	err = e.strike(ctx, d)
	if err == nil {
		err = d.untilWell(ctx)
	}
	for _, r := range d.replicas {
		if err == nil {
			err = r.untilReady(ctx)
		}
	}
	h.struck.End = now()
	programs.Sleep(ctx, calm)
	h.End = now()
	if err != nil {
		err = fmt.Errorf("%s: %w", e.what, err)
	}
	return h, err
}

// cutPrimaryOff first cuts the primary off from the standbys. For a second it goes on serving:
// the commits of that second are lost with it.
func cutPrimaryOff(ctx context.Context, d *drill) error {
	primary, err := d.primary(ctx)
	if err != nil {
		return err
	}
	routes := func(do string) error {
		var commands []string
		for _, o := range d.others(primary) {
			commands = append(commands, fmt.Sprintf("route %s blackhole %s/32", do, o.IP))
		}
		return d.ip(ctx, primary.Name, commands...)
	}
	if err := routes("add"); err != nil {
		return err
	}
	programs.Sleep(ctx, time.Second)
	if err := primary.unplug(ctx); err != nil {
		return err
	}
	programs.Sleep(ctx, away)
	return errors.Join(routes("del"), primary.plug(ctx))
}

func cutStandbyOff(ctx context.Context, d *drill) error {
	_, standby, err := d.roles(ctx)
	if err != nil {
		return err
	}
	if err := standby.unplug(ctx); err != nil {
		return err
	}
	programs.Sleep(ctx, away)
	return standby.plug(ctx)
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
	programs.Sleep(ctx, away)
	for _, n := range d.others(primary) {
		if err := d.startEtcd(n); err != nil {
			return err
		}
	}
	return nil
}

// changePassword changes the password in the database and, a second later, in the file of
// each replica. Then it ends all sessions, so that the replicas need the new password.
func changePassword(ctx context.Context, d *drill) error {
	if err := d.setPassword(ctx, d.password+"-next"); err != nil {
		return err
	}
	programs.Sleep(ctx, time.Second)
	for _, r := range d.replicas {
		if err := r.writeURL(); err != nil {
			return err
		}
	}
	ended, err := witness.Terminate(ctx, d.url("postgres"))
	if err == nil && ended == 0 {
		err = errors.New("the service had no session to end")
	}
	return err
}

// upgrade starts the next release on one replica before its migration: that replica is not
// ready, and the others serve on.
func upgrade(ctx context.Context, d *drill) error {
	early := d.replicas[0]
	if err := early.stop(); err != nil {
		return err
	}
	if err := early.launch(nextRelease); err != nil {
		return err
	}
	if err := early.untilNotReady(ctx, "migrations [999] are missing"); err != nil {
		return err
	}
	programs.Sleep(ctx, calm)
	if err := early.untilNotReady(ctx, "migrations [999] are missing"); err != nil {
		return err
	}
	if err := d.migrate(ctx, "up"); err != nil {
		return err
	}
	if err := early.untilReady(ctx); err != nil {
		return err
	}
	programs.Sleep(ctx, calm) // both releases serve on the next release's schema
	if err := d.roll(ctx, nextRelease); err != nil {
		return err
	}
	programs.Sleep(ctx, calm)
	if err := d.roll(ctx, oldRelease); err != nil {
		return err
	}
	return d.migrate(ctx, "down")
}

// migrate runs a command of the next release's migration, as a DBA does.
func (d *drill) migrate(ctx context.Context, command string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(room, nextRelease), "migrate", command)
	cmd.Env = append(os.Environ(), "PLANTSTORE_MIGRATE_DATABASE_URL="+d.url("plantstore_owner"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("plantstore migrate %s: %w: %s", command, err, bytes.TrimSpace(out))
	}
	return nil
}
