// Package migrate applies the service's migrations so that the running service
// does not notice, takes them back, and tells beforehand what they would do to a
// database. The stock goose command line runs the same files.
//
// # Writing a migration
//
// Its effects belong into effects.go, or the tests fail. A migration that runs
// outside a transaction (-- +goose NO TRANSACTION) has to be repeatable from its
// first statement, because nothing of it is rolled back: CREATE INDEX
// CONCURRENTLY comes after a DROP INDEX CONCURRENTLY IF EXISTS of the same name,
// since an interrupted one leaves an INVALID index behind.
package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"plantstore/migrations"
)

// A Migration is one file.
type Migration struct {
	Version int64  `json:"version"`
	Name    string `json:"name"` // of the file, as in "00001_plants.sql"
}

// All returns the migrations of this binary, oldest first.
func All() []Migration {
	all, err := Service().all()
	if err != nil {
		panic(err) // the embedded folder can always be read
	}
	return all
}

// Versions returns the versions of All.
func Versions() []int64 {
	all := All()
	versions := make([]int64, len(all))
	for i, m := range all {
		versions[i] = m.Version
	}
	return versions
}

// Latest returns the newest version of this binary.
func Latest() int64 {
	versions := Versions()
	return versions[len(versions)-1]
}

// A Set is a folder of migrations and what is known of their effects. There is
// one, the service's; tests make others.
type Set struct {
	Files   fs.FS
	Effects map[int64][]Effect // by version, one for each statement
	// Hindrances, if set, tells what stands in the way of applying work (up) or of
	// taking it back: Troubles of the kinds Hindrance and Caution. It is asked before
	// anything is changed.
	Hindrances func(ctx context.Context, tx pgx.Tx, up bool, work []Migration) ([]Trouble, error)
}

// Service returns the migrations of the service's schema, with nothing to look for
// hindrances.
func Service() Set { return Set{Files: migrations.Files, Effects: effects()} }

// all returns the migrations of the set, oldest first.
func (s Set) all() ([]Migration, error) {
	names, err := fs.Glob(s.Files, "*.sql") // sorted
	if err != nil {
		return nil, err
	}
	all := make([]Migration, len(names))
	for i, name := range names {
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("migration %s: its name does not start with a number", name)
		}
		all[i] = Migration{Version: version, Name: name}
	}
	return all, nil
}

func (s Set) checksum(m Migration) (string, error) {
	text, err := fs.ReadFile(s.Files, m.Name)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// Statements returns what the Up of every migration sends, oldest first.
func (s Set) Statements(ctx context.Context) ([]string, error) {
	all, err := s.all()
	if err != nil {
		return nil, err
	}
	var statements []string
	for _, m := range all {
		script, err := s.script(ctx, m)
		if err != nil {
			return nil, err
		}
		statements = append(statements, script.statements...)
	}
	return statements, nil
}
