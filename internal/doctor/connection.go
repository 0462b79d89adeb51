package doctor

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/migrate"
	"plantstore/internal/postgres"
)

// applicationName is that of the doctor's sessions.
const applicationName = "plantstore doctor"

// ownerConnection judges the connection that the migrations use.
func (e *examination) ownerConnection(ctx context.Context, conn *pgx.Conn) []Finding {
	found := []Finding{e.security(conn, e.OwnerSetting)}
	pooler, err := migrate.FindPooler(ctx, conn)
	switch {
	case err != nil:
		return append(found, unknownPooler(err))
	case pooler == migrate.TransactionPooler:
		return append(found, Finding{Grade: Warning, Message: "a pooler in transaction mode is between: migrations refuse to run through it",
			Remedy: "Set PLANTSTORE_MIGRATE_DATABASE_URL to the server itself."})
	}
	return append(found, fine("fit for migrations")...)
}

// serviceConnection connects as the service does, and judges what it finds.
func (e *examination) serviceConnection(ctx context.Context) []Finding {
	if e.Service == "" && e.Owner != "" {
		return []Finding{{Grade: Warning, Message: "not examined: DATABASE_URL is not set", Remedy: "Set DATABASE_URL as the service has it."}}
	}
	config, err := migrate.Config(e.Service, applicationName)
	var conn *pgx.Conn
	if err == nil {
		conn, err = pgx.ConnectConfig(ctx, config)
	}
	if err != nil {
		return []Finding{{Grade: Problem, Message: postgres.ExplainFor(err, e.ServiceSetting), Remedy: "Mend that: the service can't connect with this DATABASE_URL either."}}
	}
	defer conn.Close(context.WithoutCancel(ctx))
	found := []Finding{e.security(conn, e.ServiceSetting)}
	if user := config.User; user != serviceRole {
		other := Finding{Grade: Warning, Message: fmt.Sprintf("the service connects as %s and may do all that %s may", user, user)}
		err := migrate.Reading(ctx, conn, func(tx pgx.Tx) error {
			var s situation
			if err := tx.QueryRow(ctx, `SELECT current_user::text`).Scan(&s.app); err != nil {
				return err
			}
			for _, sql := range []string{serviceRights, otherService} { // the latter is worse
				missing, err := look(ctx, tx, sql, s.arguments())
				if err != nil {
					return err
				}
				if len(missing) > 0 {
					other.Grade, other.Message = Problem, missing[0].Message
				}
			}
			return nil
		})
		if err != nil {
			other.Message += ". Whether it can delete could not be examined: " + postgres.Explain(err)
		}
		other.Remedy = "Name the role " + serviceRole + " in DATABASE_URL."
		found = append(found, other)
	}
	pooler, err := migrate.FindPooler(ctx, conn)
	e.pooled = pooler != migrate.NoPooler
	if err != nil {
		return append(found, unknownPooler(err))
	}
	return append(found, judgePooler(ctx, conn, pooler))
}

func unknownPooler(err error) Finding {
	return Finding{Grade: Warning, Message: "could not find out about a pooler: " + postgres.Explain(err), Remedy: "Run this again."}
}

// judgePooler judges whether the service can work through a pooler.
func judgePooler(ctx context.Context, conn *pgx.Conn, pooler migrate.Pooler) Finding {
	switch {
	case pooler == migrate.NoPooler:
		return fine("no pooler between service and server")[0]
	case pooler == migrate.SessionPooler:
		return fine("a pooler in session mode is between service and server")[0]
	}
	refused, err := transactionsRefused(ctx, conn)
	switch {
	case err != nil:
		return unknownPooler(err)
	case refused:
		return Finding{Grade: Problem, Message: "a pooler in statement mode is between: it refuses transactions, and the service will not be ready",
			Remedy: "Set pool_mode=transaction in pgbouncer.ini, or let the service connect to the server itself."}
	case conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement, conn.Config().StatementCacheCapacity == 0:
		return fine("a pooler in transaction mode is between, and the service uses no prepared statements")[0]
	}
	collide, err := statementsCollide(ctx, conn)
	switch {
	case err != nil:
		return unknownPooler(err)
	case !collide:
		return fine("a pooler in transaction mode is between, and keeps track of prepared statements")[0]
	}
	return Finding{Grade: Problem,
		Message: "a pooler in transaction mode is between that mixes up the prepared statements of its clients: most deletions will fail",
		Remedy:  "Add default_query_exec_mode=exec to DATABASE_URL, or set max_prepared_statements=200 in pgbouncer.ini (PgBouncer 1.21 or later)."}
}

// transactionsRefused tells whether a pooler lends a server connection for one
// statement only. It ends the connection of whoever begins a transaction.
func transactionsRefused(ctx context.Context, conn *pgx.Conn) (bool, error) {
	other, err := pgx.ConnectConfig(ctx, conn.Config())
	if err != nil {
		return false, err
	}
	defer other.Close(context.WithoutCancel(ctx))
	err = pgx.BeginFunc(ctx, other, func(pgx.Tx) error { return nil })
	const protocolViolation = "08P01"
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == protocolViolation {
		return true, nil
	}
	return false, err
}

// statementsCollide tells whether two clients of a pooler can't both prepare a
// statement under one name, because one server connection is lent to both.
func statementsCollide(ctx context.Context, conn *pgx.Conn) (bool, error) {
	other, err := pgx.ConnectConfig(ctx, conn.Config())
	if err != nil {
		return false, err
	}
	defer other.Close(context.WithoutCancel(ctx))
	name := "plantstore_doctor_" + rand.Text()
	if _, err := conn.PgConn().Prepare(ctx, name, `SELECT 1`, nil); err != nil {
		return false, err
	}
	defer func() { _ = conn.PgConn().Deallocate(context.WithoutCancel(ctx), name) }()
	_, err = other.PgConn().Prepare(ctx, name, `SELECT 2`, nil)
	const duplicatePreparedStatement = "42P05"
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == duplicatePreparedStatement {
		return true, nil
	}
	return false, err
}

// security judges whether others can listen to a connection, or pose as its
// server. setting is the one that has the connection's URL.
func (e *examination) security(conn *pgx.Conn, setting string) Finding {
	c := conn.PgConn()
	at := postgres.Address(conn.Config().Host, conn.Config().Port)
	t, encrypted := c.Conn().(*tls.Conn)
	verified := encrypted && conn.Config().TLSConfig != nil && !conn.Config().TLSConfig.InsecureSkipVerify
	remedy := "Add sslmode=verify-full to " + setting + ", and sslrootcert=FILE where a private authority signs."
	switch {
	case verified:
		return fine("%s, %s, the server's name is verified", at, tls.VersionName(t.ConnectionState().Version))[0]
	case !e.isRemote(c.Conn().RemoteAddr()):
		return fine("%s, which does not leave this machine", at)[0]
	case e.PrivateNetwork:
		return fine("%s, on a network that nobody else is on, as PLANTSTORE_PRIVATE_NETWORK says", at)[0]
	case encrypted:
		return Finding{Grade: Warning, Message: fmt.Sprintf("%s: encrypted, but whoever can pose as the server gets the password", at), Remedy: remedy}
	}
	return Finding{Grade: Warning, Message: fmt.Sprintf("%s: not encrypted: plants and credentials can be read on the way", at), Remedy: remedy}
}

func isRemote(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback()
}
