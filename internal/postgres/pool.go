// Package postgres keeps the service's data: it deletes plants, reads the ledger,
// restores from it, and looks tokens up. It is the one place that knows what a
// driver error means for a deletion, and whether trying again is safe. Explain puts
// any driver error into words.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"plantstore/internal/plant"
)

// DB is a pool of connections to the store's database.
type DB struct {
	pool   *pgxpool.Pool
	shares *shares
	// host names the server or servers, and setting what has their URL, for messages.
	host, setting string
	// database and role are those of the start: a file may name another role later.
	database, role string
	// untaken is why the last connection was made with what was read at the start; nil:
	// it was not.
	untaken atomic.Pointer[string]

	// prepares: statements stay prepared on a connection.
	prepares bool
	// survives notes an error of the server's, and reports whether its connection is of use
	// after that.
	survives pgconn.PgErrorHandler

	metrics  *metrics
	faults   faults
	atCommit atCommit
}

const (
	// connectTimeout bounds one dial, unless the URL has a connect_timeout.
	connectTimeout = 2 * time.Second
	// pingTimeout bounds the check of a connection that idled for a second. It
	// is what a peer that silently went away costs a request.
	pingTimeout = 250 * time.Millisecond
)

// Open prepares a pool for the database. url is a libpq URL or DSN, in which
// several hosts and pgxpool's own settings (pool_max_conns and friends) may
// stand, see PoolSize; libpq's PG* variables fill the gaps. Open does not connect: a database
// that is down now may be up when the first request comes.
//
// The files that the URL names (passwords, certificates) are read again for each
// connection.
func Open(ctx context.Context, url string) (*DB, error) {
	return OpenFrom(ctx, ServiceSetting, url)
}

// OpenFrom is Open for a URL that comes from another setting than the service's.
func OpenFrom(ctx context.Context, setting, url string) (*DB, error) {
	return open(ctx, setting, func() (string, error) { return url, nil })
}

// OpenFile is Open for a URL in a file, which is read again for each connection: the
// role and its password may change.
func OpenFile(ctx context.Context, file string) (*DB, error) {
	return open(ctx, "the file "+file, func() (string, error) { return ReadURL(file) })
}

// ReadURL reads the URL or DSN of a database from a file. Its errors are sentences
// for an operator.
func ReadURL(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("the file with the database's URL can't be read: %w", err)
	}
	url := strings.TrimSpace(string(content))
	if url == "" { // which would mean: whatever the PG* variables say
		return "", fmt.Errorf("the file with the database's URL, %s, is empty", file)
	}
	return url, CheckURL("the file "+file, url)
}

// CheckURL refuses a URL or DSN that is not one line, that the driver would take apart
// wrongly, or that has a way to negotiate TLS that there is not, of which the driver would
// say nothing. Its error is a sentence for an operator, and names the setting. The driver
// would make part of a name of what follows the line, a password in it, and names are told.
func CheckURL(setting, url string) error {
	if strings.ContainsFunc(url, unicode.IsControl) {
		return fmt.Errorf("%s has a line break or another control character in it: the database's URL or DSN is one line", setting)
	}
	if url == "" {
		setting = "a PG* variable"
	}
	c, err := pgconn.ParseConfig(url)
	switch {
	case err != nil: // who opens it tells of that
	case isMisread(c, isURL(url)):
		return fmt.Errorf("%s: take out what is before postgres:// in it, such as a quotation mark or a name, and what is no parameter; only blanks divide the parameters of a DSN", unreadable(setting))
	case !slices.Contains([]string{"", "postgres", "direct"}, c.SSLNegotiation):
		return fmt.Errorf("sslnegotiation in %s (or PGSSLNEGOTIATION) is none that there is: it may be postgres or direct", setting)
	}
	return nil
}

// parameterName is what the server takes for the name of a parameter.
var parameterName = regexp.MustCompile(`^[\pL_][\pL\pN_.$]*$`)

// isURL reports whether the driver takes a text for a URL, and not for a DSN.
func isURL(text string) bool {
	return strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
}

// misplaced is a URL, or a password, within another value, and hasUser a host with what is
// before it in a URL. (A socket begins with / or @.)
var (
	misplaced = regexp.MustCompile(`://|(?i:password|passwd|pwd)\s*=`)
	hasUser   = regexp.MustCompile(`^[^/].*@`)
)

// isMisread reports whether a configuration has parts of a text that was not meant as
// parameters, or a URL or a password where none belongs. To the driver, all that has a = and
// does not begin as a URL is parameters, and they are divided by blanks only. We tell of
// hosts, database and role, and the server tells of parameters. Those of a URL, or of an
// extension, may have any value.
func isMisread(c *pgconn.Config, url bool) bool {
	servers := []string{c.Host}
	for _, f := range c.Fallbacks {
		servers = append(servers, f.Host)
	}
	told := append([]string{c.Database, c.User, strings.ReplaceAll(c.RuntimeParams["application_name"], "://", "")}, servers...)
	for name, value := range c.RuntimeParams {
		if !parameterName.MatchString(name) {
			return true
		}
		if !url && name != "application_name" && !strings.Contains(name, ".") {
			told = append(told, value)
		}
	}
	return slices.ContainsFunc(told, misplaced.MatchString) || slices.ContainsFunc(servers, hasUser.MatchString)
}

func open(ctx context.Context, setting string, read func() (string, error)) (*DB, error) {
	url, err := read()
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	conn := config.ConnConfig
	if conn.ConnectTimeout == 0 {
		conn.ConnectTimeout = connectTimeout
	}
	if conn.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && conn.StatementCacheCapacity == 0 ||
		conn.DefaultQueryExecMode == pgx.QueryExecModeCacheDescribe && conn.DescriptionCacheCapacity == 0 {
		conn.DefaultQueryExecMode = pgx.QueryExecModeExec // otherwise the driver would refuse every statement
	}
	conns, err := PoolSize(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	if config.PingTimeout == 0 {
		config.PingTimeout = pingTimeout
	}
	// By default it is that of the database, which need not be what we speak.
	conn.RuntimeParams["client_encoding"] = "UTF8"
	if conn.RuntimeParams["application_name"] == "" {
		conn.RuntimeParams["application_name"] = "plantstore"
	}
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 3},
	}
	conn.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialBriefly(ctx, dialer, conn.ConnectTimeout, network, address)
	}
	conn.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, c net.Conn) (net.Conn, error) {
		return c, c.SetDeadline(time.Time{}) // an ordinary connection: see dialBriefly
	}
	db := &DB{host: hosts(&conn.Config), setting: setting, shares: newShares(int(config.MaxConns)), metrics: newMetrics(), database: conn.Database, role: conn.User}
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		db.untaken.Store(nil)
		if err := renew(c, setting, read); err != nil {
			why := err.Error()
			db.untaken.Store(&why)
		}
		return nil
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		err := prepareSession(ctx, conn)
		if err == nil {
			db.metrics.opened.Inc()
		}
		return err
	}
	// What is sent on a connection that has ended meanwhile has a fate that nobody
	// knows. It is cheaper to look first.
	config.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		return !gone(conn.PgConn().Conn()), nil
	}
	if conn.ValidateConnect != nil || several(&conn.Config) {
		// Only a server that can be written to is of use, whatever
		// target_session_attrs says. SHOW, which this asks with, can't be led astray
		// by a search path; what the driver asks for other values can.
		conn.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}

	conn.OnNotice = noteWarning

	closeOnFatal := conn.OnPgError
	db.survives = func(c *pgconn.PgConn, e *pgconn.PgError) bool {
		if e.Code == readOnlyTransaction && e.Where == "" { // and not raised by a function of the store's
			// A demoted primary: none of the connections to it is of use now.
			db.pool.Reset()
			return false
		}
		return closeOnFatal(c, e)
	}
	conn.OnPgError = db.survives
	db.prepares = conn.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
	db.pool, err = pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return db, nil
}

// renew gives a connection's configuration the credentials as they are now. Where
// they can't be read, those from the start may still do. Another database would have
// another ledger, and attempts whose fate was unknown would be looked for there: so
// what names one counts for nothing until the next start. The error says in a sentence
// why those of the start are left.
func renew(c *pgx.ConnConfig, setting string, read func() (string, error)) error {
	url, err := read()
	if err != nil {
		return err
	}
	fresh, err := pgxpool.ParseConfig(url)
	if err != nil {
		return errors.New(ExplainFor(err, setting))
	}
	now := fresh.ConnConfig
	c.Database = cmp.Or(c.Database, c.User) // whoever names none means the one that is called like the role
	if cmp.Or(now.Database, now.User) != c.Database || hosts(&now.Config) != hosts(&c.Config) {
		return fmt.Errorf("%s names another server or database than at the start: restart the service for that", setting)
	}
	c.User, c.Password, c.TLSConfig, c.Fallbacks = now.User, now.Password, now.TLSConfig, now.Fallbacks
	return nil
}

// A sourcedError is one of the pool that knows where its URL came from.
type sourcedError struct {
	error
	setting string
	untaken *string // as in DB
}

func (e *sourcedError) Unwrap() error { return e.error }

// acquire has a connection of the pool.
func (db *DB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, &sourcedError{err, db.setting, db.untaken.Load()}
	}
	return conn, nil
}

// PoolSize is how many connections a service opens at the most to the database of a
// URL or DSN.
func PoolSize(url string) (int, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return 0, err
	}
	if all, err := pgx.ParseConfig(url); err != nil || all.RuntimeParams["pool_max_conns"] == "" {
		return defaultConns, err
	}
	return max(int(config.MaxConns), LeastConns), nil
}

// farewellTimeout bounds what pgx does for a connection that it gives up: cancel
// the statement, say good-bye, wait for the peer to close. pgx's own limit is
// 15 s, for which a peer that is gone keeps the connection's place in the pool.
const farewellTimeout = 500 * time.Millisecond

// dialBriefly dials as pgx does, for one of two purposes: a connection, of which
// AfterNetConnect takes the deadline away, or a cancel request, which keeps it.
func dialBriefly(ctx context.Context, d *net.Dialer, timeout time.Duration, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &briefFarewell{Conn: c}, c.SetDeadline(time.Now().Add(timeout))
}

// A briefFarewell is a connection whose deadlines are near, if they are in the
// future at all: pgx sets such ones only to end a connection. It may take one away
// by mistake (of a context that ended, in another goroutine), so the first one stays.
//
// It also knows how much was written to it, and so what the server can have been told.
type briefFarewell struct {
	net.Conn
	written atomic.Int64 // bytes
	mu      sync.Mutex
	leaving bool
}

func (c *briefFarewell) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// written returns how many bytes were written to a connection, encrypted or not, if it is of a DB.
func written(c net.Conn) (n int64, known bool) {
	for {
		if ours, ok := c.(*briefFarewell); ok {
			return ours.written.Load(), true
		}
		wrapped, ok := c.(interface{ NetConn() net.Conn }) // in TLS
		if !ok {
			return 0, false
		}
		c = wrapped.NetConn()
	}
}

// unlessWritten marks an error as errNotSent if no more was written to its connection than before.
func unlessWritten(c net.Conn, before int64, err error) error {
	if now, known := written(c); err != nil && known && now == before {
		return errNotSent{err}
	}
	return err
}

// NetConn returns the connection itself, as in crypto/tls.
func (c *briefFarewell) NetConn() net.Conn { return c.Conn }

func (c *briefFarewell) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving {
		return nil
	}
	if limit := time.Now().Add(farewellTimeout); t.After(limit) {
		t, c.leaving = limit, true
	}
	return c.Conn.SetDeadline(t)
}

// prepareSession bounds how long anything of ours can hold a lock when we are no
// longer there to let it go. Through a pooler, which has made up the process id that
// we were told, it does nothing: the session belongs to others, too. (Start-up
// parameters are no way either: PgBouncer refuses a connection that comes with them.)
func prepareSession(ctx context.Context, conn *pgx.Conn) error {
	// Deletions set what they rely on themselves, in their transaction. But their
	// statements are parsed before, at first use, and that waits for locks of the
	// table, too: it has to give up before an attempt does (see attemptTimeout), or the
	// attempt would end with its fate unknown. The keep-alives let the server notice
	// within 8 s that we are gone. jit: to compile a statement takes longer than any of ours;
	// where the server compiles cheap ones, too, a deletion took 10 s. exit_on_error: where each
	// error ended its session, nobody would know that it took a deletion back.
	// log_parameter_max_length_on_error: where errors came with the parameters, they would look
	// as if a function had raised them.
	//
	// pgxpool sets no limit: a peer that falls silent now would keep the
	// connection's place in the pool.
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	tag, err := conn.Exec(ctx, fmt.Sprintf(`
		SELECT pg_catalog.set_config(name, value, false) FROM (VALUES
			('statement_timeout', '10s'), ('lock_timeout', '%s'), ('idle_in_transaction_session_timeout', '5s'), ('jit', 'off'), ('exit_on_error', 'off'), ('log_parameter_max_length_on_error', '0'),
			('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '1'), ('tcp_keepalives_count', '3')) settings (name, value)
		WHERE pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) %d`, lookLockTimeout, conn.PgConn().PID()))
	if err != nil {
		return fmt.Errorf("prepare session: %w", err)
	}
	if tag.RowsAffected() == 0 {
		conn.PgConn().CustomData()[pooled] = true
	}
	return nil
}

// Script runs statements, separated by semicolons, in one transaction unless they
// say otherwise. It is for setting a database up.
func Script(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

// Close ends all connections, once those in use are given back. It does not wait
// longer than two seconds: a peer that fell silent never says good-bye.
func (db *DB) Close() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		db.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(2 * time.Second):
	}
}

// MaxConns is how many connections may be open at a time.
func (db *DB) MaxConns() int32 { return db.pool.Stat().MaxConns() }

// Address names the server or servers, in the order in which they are tried.
func (db *DB) Address() string { return db.host }

// Database and Role are those that the pool was opened with.
func (db *DB) Database() string { return db.database }
func (db *DB) Role() string     { return db.role }

// A NotReadyError says why requests can't be served. Its text is a sentence for an
// operator.
type NotReadyError struct {
	// Reason is one of those below.
	Reason string
	text   string
}

// Why requests can't be served.
const (
	Unreachable    = "unreachable"     // the database does not answer, or not to us
	ReadOnly       = "read_only"       // a standby, or a demoted primary
	SchemaBehind   = "schema_behind"   // migrations are missing
	StandbyMissing = "standby_missing" // no commit ends
	Hindered       = "hindered"        // what doctor tells about
)

// ErrLocked: what a question reads is locked by somebody else.
var ErrLocked = errors.New("a table that the service has to look at is locked")

func (e *NotReadyError) Error() string { return e.text }

// NotReady is what the error of a question about the database says of it: a
// *NotReadyError or, if it was a lock that could not be had, ErrLocked. Deletions wait for
// locks, so that says nothing of whether they can be made.
func (db *DB) NotReady(err error) error {
	v := judge(err, true)
	switch {
	case sqlState(err) == lockNotAvailable:
		return ErrLocked
	case pgError(err) != nil && !errors.Is(v.err, plant.ErrUnavailable) && !errors.Is(v.err, plant.ErrBusy):
		return &NotReadyError{Hindered, db.explain(err).Error()}
	}
	return &NotReadyError{Unreachable, db.explain(err).Error()}
}

// Ready returns nil when a writable primary answers, has every migration of versions
// and can commit; otherwise a *NotReadyError, or ErrLocked if whether it has them can't
// be read now.
func (db *DB) Ready(ctx context.Context, versions []int64) error {
	var stuck bool
	var readOnly, standbys string
	var missing string
	err := db.Lend(ctx, func(conn *pgx.Conn) error {
		err := queryRow(ctx, conn, []any{&readOnly, &standbys},
			`SELECT CASE WHEN pg_is_in_recovery() THEN 'a standby, or a demoted primary'
					WHEN current_setting('transaction_read_only') = 'on' THEN 'default_transaction_read_only is on, as some platforms have it where the disk is nearly full: see ''plantstore doctor'''
					ELSE '' END, current_setting('synchronous_standby_names')`)
		if err != nil || readOnly != "" {
			return err
		}
		if missing, err = missingOf(ctx, conn, versions); err != nil || standbys == "" {
			return err
		}
		stuck, err = isStuck(ctx, conn)
		return err
	})
	switch {
	case stuck:
		return &NotReadyError{StandbyMissing, fmt.Sprintf("no commit ends: synchronous_standby_names is %q, and no such standby answers", standbys)}
	case err != nil:
		return db.NotReady(err)
	case readOnly != "":
		db.pool.Reset() // with several hosts, the next connection may find the new primary
		return &NotReadyError{ReadOnly, fmt.Sprintf("the database at %s is read-only: %s", db.host, readOnly)}
	case missing != "":
		return &NotReadyError{SchemaBehind, "the schema is behind: " + missing + " with 'plantstore migrate up'"}
	}
	return nil
}

// standbyTimeout is how long a commit may wait for its synchronous standby before
// that counts as missing.
const standbyTimeout = 500 * time.Millisecond

// isStuck reports whether a commit waits for its synchronous standby in vain. The
// service's role can't see who replicates, so it tries with the smallest commit that
// there is. The connection is gone after that.
func isStuck(ctx context.Context, conn *pgx.Conn) (bool, error) {
	short, cancel := context.WithTimeout(ctx, standbyTimeout)
	defer cancel()
	err := settle(short, conn)
	if err != nil && short.Err() != nil || errors.Is(err, errCutShort) {
		return true, nil
	}
	return false, err
}

// missingOf says which of versions the database does not have, or nothing. Those that row
// level security may hide are not missing: that is a hindrance of its own.
func missingOf(ctx context.Context, conn *pgx.Conn, versions []int64) (string, error) {
	var missing []string
	err := queryRow(ctx, conn, []any{&missing}, `
		SELECT ARRAY(SELECT v::pg_catalog.text FROM unnest($1::bigint[]) v
			WHERE NOT row_security_active('public.goose_db_version')
				AND NOT EXISTS (SELECT FROM public.goose_db_version g WHERE g.version_id = v AND g.is_applied) ORDER BY v)`, versions)
	switch sqlState(err) {
	case insufficientPrivilege:
		return "the migration that lets the service see which are applied is missing, or its rights were taken away: see 'plantstore doctor', or apply it", nil
	case undefinedTable: // never migrated
		for _, v := range versions {
			missing = append(missing, strconv.FormatInt(v, 10))
		}
		err = nil
	}
	if err != nil || len(missing) == 0 {
		return "", err
	}
	return "migrations " + strings.Join(missing, ", ") + " are missing; apply them", nil
}

func (db *DB) explain(err error) error {
	if pg := pgError(err); pg != nil && pg.Where == "" && (pg.Code == undefinedTable || pg.Code == undefinedColumn || pg.Code == undefinedFunction) {
		return fmt.Errorf("the schema is behind (%s): apply the migrations with 'plantstore migrate up'", pg.Message)
	}
	return errors.New(ExplainFor(err, db.setting))
}

// explainToOwner is explain for a command of the owner's, who may have come as the service, or
// to the wrong server.
func (db *DB) explainToOwner(err error) error {
	pg := pgError(err)
	if pg == nil {
		return db.explain(err)
	}
	switch {
	case hidden(err):
		return fmt.Errorf("%s: give role %s BYPASSRLS, or connect as the table's owner where it has no FORCE ROW LEVEL SECURITY", Explain(err), db.role)
	case pg.Code == insufficientPrivilege:
		return fmt.Errorf("%s: connect as the owner, see PLANTSTORE_MIGRATE_DATABASE_URL", Explain(err))
	case pg.Code == lockNotAvailable:
		return fmt.Errorf("somebody else holds a lock that is needed, try again: %s", Explain(err))
	case pg.Where != "": // of something that a function of the store's has met
	case pg.Code == readOnlyTransaction:
		return fmt.Errorf("the database at %s is read-only: a standby, or default_transaction_read_only is on. Connect to the primary, or see 'plantstore doctor': %s", db.host, Explain(err))
	case pg.Code == "42P05", pg.Code == "26000": // duplicate_prepared_statement, invalid_sql_statement_name
		return fmt.Errorf("a pooler in transaction mode is between, which mixes up the prepared statements of its clients. Connect to the server itself, see PLANTSTORE_MIGRATE_DATABASE_URL: %s", Explain(err))
	}
	return db.explain(err)
}

// hidden reports whether row level security of some table would hide rows, which has the code of
// a right that is lacking. Only the routine tells them apart.
func hidden(err error) bool {
	pg := pgError(err)
	return pg != nil && pg.Code == insufficientPrivilege && pg.Routine == "check_enable_rls"
}

// several reports whether a configuration has more than one server.
func several(c *pgconn.Config) bool {
	return slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool {
		return Address(f.Host, f.Port) != Address(c.Host, c.Port)
	})
}

// hosts lists the servers of a configuration, in the order they are tried.
func hosts(c *pgconn.Config) string {
	at := []string{Address(c.Host, c.Port)}
	for _, f := range c.Fallbacks {
		a := Address(f.Host, f.Port)
		if a != at[len(at)-1] { // TLS and plain are two entries for one host
			at = append(at, a)
		}
	}
	return strings.Join(at, ", ")
}

// Address names a server: its socket's folder, or host:port.
func Address(host string, port uint16) string {
	if strings.HasPrefix(host, "/") {
		return host
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
