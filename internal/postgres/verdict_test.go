package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/plant"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	sql := func(code string) error {
		return fmt.Errorf("wrapped: %w", &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Message: "driver text"})
	}
	fatal := func(code string) error {
		return &pgconn.PgError{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: code, Message: "driver text"}
	}
	tests := []struct {
		name  string
		err   error
		sent  bool
		want  error // nil: an error of no kind that plant knows
		fate  fate
		retry bool
	}{
		{"lock_not_available", sql("55P03"), true, plant.ErrBusy, nothing, true},
		{"query_canceled", sql("57014"), true, plant.ErrBusy, nothing, true},
		{"serialization_failure", sql("40001"), true, plant.ErrBusy, nothing, true},
		{"deadlock_detected", sql("40P01"), true, plant.ErrBusy, nothing, true},
		{"admin_shutdown", fatal("57P01"), true, plant.ErrUnavailable, unknown, true},
		{"crash_shutdown", fatal("57P02"), true, plant.ErrUnavailable, unknown, true},
		{"cannot_connect_now", fatal("57P03"), true, plant.ErrUnavailable, unknown, true},
		{"too_many_connections", sql("53300"), true, plant.ErrUnavailable, nothing, true},
		{"disk_full", sql("53100"), true, plant.ErrUnavailable, nothing, true},
		{"connection_failure", sql("08006"), true, plant.ErrUnavailable, unknown, true},
		{"read_only_sql_transaction", sql("25006"), true, plant.ErrUnavailable, nothing, true},
		{"undefined_table", sql("42P01"), true, plant.ErrUnavailable, nothing, false},
		{"insufficient_privilege", sql("42501"), true, nil, nothing, false},
		{"syntax_error", sql("42601"), true, nil, nothing, false},
		{"raised by a trigger", sql("P0001"), true, nil, nothing, false},
		{"unexpected EOF", io.ErrUnexpectedEOF, true, plant.ErrUnavailable, unknown, true},
		{"deadline in mid-statement", context.DeadlineExceeded, true, plant.ErrUnavailable, unknown, true},
		{"pool exhausted", context.DeadlineExceeded, false, plant.ErrUnavailable, nothing, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := judge(tt.err, tt.sent)
			if got.fate != tt.fate || got.retry != tt.retry {
				t.Errorf("judge = fate %d, retry %v; want %d, %v", got.fate, got.retry, tt.fate, tt.retry)
			}
			for _, sentinel := range []error{plant.ErrBusy, plant.ErrUnavailable} {
				if is := errors.Is(got.err, sentinel); is != (sentinel == tt.want) {
					t.Errorf("judge says %v; want %v", got.err, tt.want)
				}
			}
			var driver *pgconn.PgError
			if errors.As(got.err, &driver) {
				t.Error("a driver error got out of the package")
			}
		})
	}
	for _, code := range []string{"23503", "23001", "23502"} {
		err := &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, TableName: "orders"}
		got := judge(err, true)
		var referenced *plant.ReferencedError
		if !errors.As(got.err, &referenced) || referenced.Table != "orders" || got.retry || got.fate != nothing {
			t.Errorf("judge of SQLSTATE %s = %+v; want a reference by orders, no retry", code, got)
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
