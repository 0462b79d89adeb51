package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// A session may be ended while its statements are parsed, before the deletion is sent.
func TestASessionThatEndsWhileItParses(t *testing.T) {
	t.Parallel()
	s, l := newLink(t, pgtest.New(t), LeastConns, nil)
	s.plant(t, 1)
	conn, err := s.borrow(in(t, patience), retried, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	l.arm([]breach{{direction: toService, way: byFatal}})
	_, _, _, err = deleteEach(in(t, patience), single{conn.Conn.Conn()}, turns(1), patience, patience, new(atCommit))
	if _, left := l.up(); left > 0 {
		t.Fatalf("the session did not end: %v", err)
	}
	if got := judge(err, true); got.next != again || !errors.Is(got.err, plant.ErrUnavailable) {
		t.Errorf("judge of %q: next step %d, %v; want %d, ErrUnavailable", err, got.next, got.err, again)
	}
	if !s.has(t, 1) {
		t.Error("the plant is gone")
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	sql := func(code string) error {
		return fmt.Errorf("wrapped: %w", &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Message: "driver text"})
	}
	fatal := func(code string) error {
		return &pgconn.PgError{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code, Message: "driver text"}
	}
	// As from a function of the store's.
	within := func(code string) error {
		return &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Where: "PL/pgSQL function audit() line 3 at RAISE"}
	}
	// As from a function in C, which a rule or policy of the store's calls.
	others := func(code string) error {
		return &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Routine: "dblink_get_conn"}
	}
	ours := func(code string) error {
		return &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Where: "PL/pgSQL function public.plantstore_record_deletion() line 61 at SQL statement"}
	}
	violation := func(code, table, constraint, column string) error {
		return &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, SchemaName: "public",
			TableName: table, ConstraintName: constraint, ColumnName: column}
	}
	// As from a server that lets nobody in.
	refused := func(code string) error {
		answer, err := (&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code, Message: "driver text"}).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = pgconn.Connect(t.Context(), "host=127.0.0.1 port="+tlsServer(t, string(answer), nil)+" user=u password=p dbname=store sslmode=disable")
		if _, is := errors.AsType[*pgconn.ConnectError](err); !is {
			t.Fatalf("connecting to a server that says %s: %v, want a ConnectError", code, err)
		}
		return err
	}
	tests := []struct {
		name string
		err  error
		sent bool
		want error // nil: an error of no kind that plant knows
		next step
	}{
		{"lock_not_available", sql("55P03"), true, plant.ErrBusy, again},
		{"query_canceled", sql("57014"), true, plant.ErrBusy, again},
		{"serialization_failure", sql("40001"), true, plant.ErrBusy, again},
		{"deadlock_detected", sql("40P01"), true, plant.ErrBusy, again},
		{"admin_shutdown", fatal("57P01"), true, plant.ErrUnavailable, ask},
		{"crash_shutdown", fatal("57P02"), true, plant.ErrUnavailable, ask},
		{"cannot_connect_now", fatal("57P03"), true, plant.ErrUnavailable, ask},
		{"admin_shutdown as an error", sql("57P01"), true, plant.ErrUnavailable, ask},
		{"internal error that ends the session", fatal("XX000"), true, plant.ErrUnavailable, ask},
		{"panic", &pgconn.PgError{Severity: "PANIK", SeverityUnlocalized: "PANIC", Code: "XX000"}, true, plant.ErrUnavailable, ask},
		{"fatal of a pooler", &pgconn.PgError{Severity: "FATAL", Code: "53300", Message: "driver text"}, true, plant.ErrUnavailable, ask},
		{"cancelled by a pooler that ends the session", &pgconn.PgError{Severity: "FATAL", Code: "57014", Message: "driver text"}, true, plant.ErrUnavailable, ask},
		{"fatal in another language", &pgconn.PgError{Severity: "FATALE", SeverityUnlocalized: "FATAL", Code: "XX000"}, true, plant.ErrUnavailable, ask},
		{"too_many_connections", sql("53300"), true, plant.ErrUnavailable, again},
		{"disk_full", sql("53100"), true, plant.ErrUnavailable, again},
		{"io_error", sql("58030"), true, plant.ErrUnavailable, again},
		{"connection_failure", sql("08006"), true, plant.ErrUnavailable, ask},
		{"connection_failure of a connection that a trigger made", within("08006"), true, plant.ErrHindered, alone},
		{"connection_failure of a connection that a rule or policy made", errAtDelete{others("08006")}, true, plant.ErrHindered, alone},
		{"protocol_violation, as of a pooler that mixes sessions up", errAtDelete{others("08P01")}, true, plant.ErrUnavailable, ask},
		{"an error of a proxy without a code", sql(""), true, plant.ErrUnavailable, ask},
		{"the same, of one that refuses a connection", sql(""), false, plant.ErrUnavailable, again},
		{"disk_full where a trigger writes", within("53100"), true, plant.ErrHindered, alone},
		{"disk_full where the ledger is written", ours("53100"), true, plant.ErrUnavailable, again},
		{"io_error at a DELETE", errAtDelete{sql("58030")}, true, plant.ErrUnavailable, alone},
		{"connection_failure of a connection that a trigger on the ledger made", ours("08006"), true, plant.ErrHindered, alone},
		{"admin_shutdown that a trigger on the ledger raises", ours("57P01"), true, plant.ErrHindered, alone},
		{"too_many_connections where a trigger connects to", within("53300"), true, plant.ErrHindered, alone},
		{"io_error in a trigger", within("58030"), true, plant.ErrHindered, alone},
		{"read_only_sql_transaction where a trigger writes", within("25006"), true, plant.ErrHindered, alone},
		{"prepared statement of a trigger", within("42P05"), true, plant.ErrHindered, alone},
		{"no prepared statement of a trigger", within("26000"), true, plant.ErrHindered, alone},
		{"admin_shutdown where a trigger connects to", within("57P01"), true, plant.ErrHindered, alone},
		{"cannot_connect_now where a trigger connects to", within("57P03"), true, plant.ErrHindered, alone},
		{"read_only_sql_transaction", sql("25006"), true, plant.ErrUnavailable, again},
		{"prepared statement of another session", sql("42P05"), true, plant.ErrUnavailable, again},
		{"prepared statement in another session", sql("26000"), true, plant.ErrUnavailable, again},
		{"undefined_table", sql("42P01"), true, plant.ErrHindered, done},
		{"undefined_table in a trigger", within("42P01"), true, plant.ErrHindered, done},
		{"undefined_object in a policy", sql("42704"), true, plant.ErrHindered, done},
		{"insufficient_privilege", sql("42501"), true, plant.ErrHindered, done},
		{"insufficient_privilege in a trigger", within("42501"), true, plant.ErrHindered, done},
		{"unrecorded", within(unrecorded), true, plant.ErrHindered, look},
		{"recorded already", violation("23505", "plant_deletions", "plant_deletions_once", ""), true, plant.ErrBusy, look},
		{"recorded already, during a REINDEX CONCURRENTLY", violation("23505", "plant_deletions", "plant_deletions_once_ccold", ""), true, plant.ErrBusy, look},
		{"nobody's cascade in a batch", violation("23502", "plant_deletions", "", "deleted_by"), true, plant.ErrBusy, alone},
		{"the ledger's sequence is behind", violation("23505", "plant_deletions", "plant_deletions_pkey", ""), true, plant.ErrHindered, done},
		{"check of another table", violation("23514", "archive", "archive_check", ""), true, plant.ErrStoreRule, done},
		{"check of no table", violation("23514", "", "", ""), true, plant.ErrStoreRule, done},
		{"raised by a trigger", within("P0001"), true, plant.ErrStoreRule, done},
		{"raised by a trigger in C", sql("09000"), true, plant.ErrStoreRule, done},
		{"bad value in a trigger", within("22012"), true, plant.ErrStoreRule, done},
		{"bad value in our own statement", sql("22P02"), true, nil, done},
		{"bad value in a rule or policy", errAtDelete{sql("22012")}, true, plant.ErrStoreRule, done},
		{"several rows for a value of a rule", errAtDelete{sql("21000")}, true, plant.ErrStoreRule, done},
		{"internal error of a rule or policy", errAtDelete{sql("XX000")}, true, plant.ErrHindered, done},
		{"deletions that can't be published, at the DELETE", errAtDelete{sql("55000")}, true, plant.ErrHindered, done},
		{"rule that does not go with RETURNING", sql("0A000"), true, plant.ErrStoreRule, done},
		{"no transaction ids are left", sql("54000"), true, plant.ErrHindered, done},
		{"row too large for the ledger", within("54000"), true, plant.ErrHindered, done},
		{"value too large for the ledger", within("XX000"), true, plant.ErrHindered, done},
		{"state that a trigger does not like", within("55000"), true, plant.ErrStoreRule, done},
		{"deletions that can't be published", sql("55000"), true, plant.ErrHindered, done},
		{"the shapes' sequence is behind", violation("23505", "plant_shapes", "plant_shapes_pkey", ""), true, plant.ErrHindered, done},
		{"internal error", sql("XX000"), true, nil, done},
		{"unexpected EOF", io.ErrUnexpectedEOF, true, plant.ErrUnavailable, ask},
		{"deadline in mid-statement", context.DeadlineExceeded, true, plant.ErrUnavailable, ask},
		{"pool exhausted", context.DeadlineExceeded, false, plant.ErrUnavailable, again},
		{"too_many_connections for a new connection", sql("53300"), false, plant.ErrUnavailable, again},
		{"invalid_authorization_specification for a new connection", sql("28000"), false, plant.ErrUnavailable, done},
		{"invalid_catalog_name for a new connection", sql("3D000"), false, plant.ErrUnavailable, done},
		{"insufficient_privilege for a new connection", sql("42501"), false, plant.ErrUnavailable, done},
		{"too_many_connections at the login", refused("53300"), false, plant.ErrUnavailable, again},
		{"invalid_authorization_specification at the login", refused("28000"), false, plant.ErrUnavailable, done},
		{"invalid_catalog_name at the login", refused("3D000"), false, plant.ErrUnavailable, done},
		{"invalid_password at the login, which may be being changed", refused(invalidPassword), false, plant.ErrUnavailable, again},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := judge(tt.err, tt.sent)
			if got.next != tt.next {
				t.Errorf("judge: next step %d, want %d", got.next, tt.next)
			}
			for _, sentinel := range []error{plant.ErrBusy, plant.ErrUnavailable, plant.ErrHindered, plant.ErrStoreRule} {
				if is := errors.Is(got.err, sentinel); is != (sentinel == tt.want) {
					t.Errorf("judge says %v; want %v", got.err, tt.want)
				}
			}
			if _, ok := errors.AsType[*pgconn.PgError](got.err); ok {
				t.Error("a driver error got out of the package")
			}
		})
	}
}

// A budget is held by whoever has locked its row. That a serializable transaction came too
// late for it is over at once.
func TestABudgetIsHeldByALock(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]verdict{
		lockNotAvailable:     {next: again, what: locked, held: true},
		"57014":              {next: again, what: locked, held: true},
		serializationFailure: {next: alone, what: retried},
	} {
		err := &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Where: "PL/pgSQL function public.plantstore_spend(text,bigint,bigint,interval,bigint) line 13 at SQL statement"}
		if got := sendOn(judge(err, true), err); got.next != want.next || got.what != want.what || got.held != want.held {
			t.Errorf("%s: next %d, as %s, held %v; want %d, %s, %v", code, got.next, got.what, got.held, want.next, want.what, want.held)
		}
	}
}

func TestExplainTellsWhatToMend(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	config := s.pool.Config().ConnConfig
	tests := []struct{ name, url, want string }{
		{"not a URL", "postgres://user:secret@host:port/db", "DATABASE_URL cannot be read as a PostgreSQL URL or DSN, such as postgres://user:password@host:5432/database"},
		{"nobody there", "postgres://user:secret@127.0.0.1:1/db?sslmode=disable", "cannot connect to PostgreSQL at 127.0.0.1:1: connection refused: is it running, and is DATABASE_URL right?"},
		{"no socket", "postgres://user:secret@/db?host=/nonexistent", "cannot connect to PostgreSQL at /nonexistent: the socket does not exist: is it running, and is DATABASE_URL right?"},
		{"no database", "database=none", fmt.Sprintf("there is no database %q at %s: create it, or correct DATABASE_URL", "none", Address(config.Host, config.Port))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var err error
			if tt.url == "database=none" {
				other := s.pool.Config().ConnConfig.Copy()
				other.Database = "none"
				_, err = pgconn.ConnectConfig(t.Context(), &other.Config)
			} else {
				_, err = pgconn.Connect(t.Context(), tt.url)
			}
			if err == nil {
				t.Fatal("connected")
			}
			if got := Explain(err); got != tt.want {
				t.Errorf("Explain = %q\nwant      %q", got, tt.want)
			}
		})
	}
}
