package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A Plan is what Up would do to a database.
type Plan struct {
	Database string `json:"database"`
	// Version is the newest that is applied, Binary the newest of this binary.
	Version int64              `json:"version"`
	Binary  int64              `json:"binary"`
	Pending []PendingMigration `json:"pending"`
	Trouble []Trouble          `json:"trouble"`
	// Cautions keep nothing from working.
	Cautions []Trouble `json:"cautions"`
	// Unrecorded were applied by something else than Up: whether their text has
	// changed is not known. The next Up takes their present text as Baselines.
	Unrecorded []Migration `json:"unrecorded"`
	Baselines  []Migration `json:"baselines"`
}

// A PendingMigration is one that would be applied.
type PendingMigration struct {
	Migration
	Transaction bool        `json:"transaction"` // all of it, or nothing
	Verdict     Verdict     `json:"verdict"`     // the worst of its statements
	Statements  []Statement `json:"statements"`
}

// A Statement is one that would be sent, letter for letter.
type Statement struct {
	SQL     string     `json:"sql"`
	Verdict Verdict    `json:"verdict"`
	Does    string     `json:"does"`
	Locks   []HeldLock `json:"locks"` // until the transaction ends
	Safer   string     `json:"safer,omitempty"`
	Manual  string     `json:"manual,omitempty"`
}

// A HeldLock is a Lock and the size of its table, by estimate. A table that does
// not exist is made by an earlier migration of the plan: nobody waits for it.
type HeldLock struct {
	Lock
	Exists bool   `json:"exists"`
	Rows   *int64 `json:"rows"` // nil: never analysed
	Bytes  int64  `json:"bytes"`
}

// Plan tells what Up would do. It executes nothing and creates nothing, and
// works on a standby too.
func (s Set) Plan(ctx context.Context, databaseURL string) (Plan, error) {
	conn, err := Connect(ctx, databaseURL, applicationName)
	if err != nil {
		return Plan{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	p := Plan{Database: conn.Config().Database, Pending: []PendingMigration{}}
	err = Holding(ctx, conn, History, func(tx pgx.Tx) error {
		c, err := s.inspectIn(ctx, tx)
		if err != nil {
			return err
		}
		for _, m := range c.applied {
			p.Version = max(p.Version, m.Version)
		}
		p.Trouble, p.Cautions = append([]Trouble{}, c.trouble...), []Trouble{}
		p.Unrecorded = append([]Migration{}, c.unrecorded...)
		p.Baselines = append([]Migration{}, c.baselines...)
		for _, m := range c.pending {
			pending, err := s.describe(ctx, tx, m)
			if err != nil {
				return err
			}
			p.Pending = append(p.Pending, pending)
		}
		return s.addHindrances(ctx, tx, &p, c.pending)
	})
	if err != nil {
		return Plan{}, err
	}
	all, err := s.all()
	if len(all) > 0 {
		p.Binary = all[len(all)-1].Version
	}
	return p, err
}

func (s Set) addHindrances(ctx context.Context, tx pgx.Tx, p *Plan, work []Migration) error {
	if s.Hindrances == nil {
		return nil
	}
	found, err := s.Hindrances(ctx, tx, true, work)
	if err != nil {
		return fmt.Errorf("look for hindrances: %w", err)
	}
	for _, t := range found {
		if t.Kind == Caution {
			p.Cautions = append(p.Cautions, t)
		} else {
			p.Trouble = append(p.Trouble, t)
		}
	}
	return nil
}

// describe tells what m would do to the database.
func (s Set) describe(ctx context.Context, tx pgx.Tx, m Migration) (PendingMigration, error) {
	script, err := s.script(ctx, m)
	if err != nil {
		return PendingMigration{}, err
	}
	pending := PendingMigration{Migration: m, Transaction: script.transaction, Verdict: Safe, Statements: []Statement{}}
	effects := s.Effects[m.Version]
	for i, sql := range script.statements {
		statement := Statement{SQL: sql, Verdict: Unknown, Locks: []HeldLock{},
			Does: "its locks are not known: this plantstore was built without an entry for it"}
		if len(effects) == len(script.statements) {
			if err := statement.judge(ctx, tx, effects[i]); err != nil {
				return PendingMigration{}, err
			}
		}
		pending.Verdict = worse(pending.Verdict, statement.Verdict)
		pending.Statements = append(pending.Statements, statement)
	}
	return pending, nil
}

// judge says what an effect means to the tables that exist, on the server's
// version of PostgreSQL.
func (s *Statement) judge(ctx context.Context, tx pgx.Tx, effect Effect) error {
	s.Verdict, s.Does, s.Safer, s.Manual = Safe, effect.Does, effect.Safer, manual+effect.Manual
	var major int
	if err := tx.QueryRow(ctx, `SELECT current_setting('server_version_num')::int / 10000`).Scan(&major); err != nil {
		return fmt.Errorf("ask for the version: %w", err)
	}
	for _, lock := range effect.Locks {
		if lock.Since > major {
			continue
		}
		held := HeldLock{Lock: lock}
		err := tx.QueryRow(ctx, `SELECT true, nullif(reltuples, -1)::bigint, pg_total_relation_size(oid)
			FROM pg_class WHERE oid = to_regclass($1)`, lock.Table).Scan(&held.Exists, &held.Rows, &held.Bytes)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("size of %s: %w", lock.Table, err)
		}
		s.Locks = append(s.Locks, held)
		if !held.Exists {
			continue
		}
		s.Verdict = worse(s.Verdict, lock.verdict())
		if effect.Safer != "" {
			s.Verdict = worse(s.Verdict, Rewrites)
		}
	}
	return nil
}
