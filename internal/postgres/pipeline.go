package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
)

// A pipeline is a connection on which several batches may be on the road at a time. Each
// is a transaction of its own. It is sent without waiting for the answers to those before
// it, and these come in the order in which the batches were sent (PostgreSQL's manual,
// "Protocol Flow", "Pipelining"). So the server has the next batch at hand when it is done
// with one, and works on it with what it has just had in its caches. Each on a connection
// of its own, the same batches cost it more.
//
// pgx waits for the answers to one batch before it sends the next on a connection. So what
// is sent and read here are the messages of the protocol, as pgx has them.
//
// Whatever breaks the connection, or its order, leaves the fate of all batches on the road
// unknown. Nothing is read from it after that: it might be the answer to another one.
type pipeline struct {
	*borrowed
	group *group
	// shareable: others may send on it, too.
	shareable bool

	sending sync.Mutex
	last    chan struct{} // closed when the answer to the batch that was sent last was read
	parsed  parsed        // see parsedOn
	broken  atomic.Bool

	load load // guarded by the group's mutex
}

// pooled is the name of a mark on connections that a pooler gave us.
const pooled = "plantstore.pooled"

// newPipeline starts one on a connection, for a batch.
func (g *group) newPipeline(conn *borrowed) *pipeline {
	pg := conn.Conn.Conn().PgConn()
	p := &pipeline{
		borrowed: conn, group: g, last: make(chan struct{}), parsed: parsedOn(pg), load: load{batches: 1},
		// A pooler may give each transaction another server. And whoever waits for a budget
		// would hold up all behind.
		shareable: g.what == together && g.db.prepares && pg.CustomData()[pooled] == nil,
	}
	close(p.last)
	return p
}

// errBroken: the connection broke. Of a batch that was sent, nothing is known.
var errBroken = errors.New("the connection broke with a batch that was sent before this one")

// run implements runner, for any number of goroutines at a time if the pipeline is
// shareable. Then each batch may take commitTimeout once those before it have their
// answers, and ctx is not looked at.
func (p *pipeline) run(ctx context.Context, statements []statement) (tags []pgconn.CommandTag, err error) {
	conn := p.Conn.Conn()
	if !p.shareable {
		return single{conn}.run(ctx, statements)
	}
	sent := time.Now()
	ahead, answered, sampled, err := p.send(conn, statements)
	if err != nil {
		return nil, err
	}
	ended := false
	defer func() {
		if !ended {
			p.broken.Store(true)
		}
		close(answered)
	}()
	<-ahead
	if p.broken.Load() {
		return nil, errBroken
	}
	if err := conn.PgConn().Conn().SetReadDeadline(time.Now().Add(commitTimeout)); err != nil {
		return nil, err
	}
	tags, proved, ended, err := p.receive(statements)
	commit := time.Duration(0)
	if sampled && err == nil {
		commit = time.Since(proved)
	}
	p.group.heard(p, sent, commit)
	return tags, err
}

// sampleEvery: of so many batches one has its commit timed. It costs the server another
// message, and us another look.
const sampleEvery = 8

// send sends a batch. Its answer may be read when ahead is closed. Then answered has to be
// closed, for the next one. A batch that is sampled has its commit answered apart from the
// rest, so that it can be timed.
func (p *pipeline) send(conn *pgx.Conn, statements []statement) (ahead <-chan struct{}, answered chan<- struct{}, sampled bool, err error) {
	p.sending.Lock()
	defer p.sending.Unlock()
	if p.broken.Load() {
		return nil, nil, false, errNotSent{errBroken}
	}
	sent := false
	defer func() {
		if !sent {
			p.broken.Store(true)
		}
	}()
	messages := conn.PgConn().Frontend()
	for _, st := range statements {
		name, known := p.parsed.name(st.sql)
		if !known {
			messages.SendClose(&pgproto3.Close{ObjectType: 'S', Name: name}) // of a batch that failed
			messages.SendParse(&pgproto3.Parse{Name: name, Query: st.sql})
		}
		bind := pgproto3.Bind{PreparedStatement: name}
		for _, arg := range st.args {
			value, format, err := encode(conn.TypeMap(), arg)
			if err != nil {
				return nil, nil, false, errNotSent{err}
			}
			bind.Parameters, bind.ParameterFormatCodes = append(bind.Parameters, value), append(bind.ParameterFormatCodes, format)
		}
		messages.SendBind(&bind)
		messages.SendExecute(&pgproto3.Execute{})
	}
	if sampled = p.group.commitSamples.Add(1)%sampleEvery == 1; sampled {
		messages.Send(&pgproto3.Flush{})
	}
	messages.SendSync(&pgproto3.Sync{})
	if err := conn.PgConn().Conn().SetWriteDeadline(time.Now().Add(commitTimeout)); err != nil {
		return nil, nil, false, errNotSent{err}
	}
	before, _ := written(conn.PgConn().Conn())
	if err := messages.Flush(); err != nil {
		return nil, nil, false, unlessWritten(conn.PgConn().Conn(), before, err)
	}
	sent = true
	next := make(chan struct{})
	ahead, p.last = p.last, next
	return ahead, next, sampled, nil
}

// receive reads the answer to some statements: proved is when that to the last of them came,
// before the commit's. It has ended if the next answer can be read.
func (p *pipeline) receive(statements []statement) (tags []pgconn.CommandTag, proved time.Time, ended bool, err error) {
	conn := p.Conn.Conn().PgConn()
	warned := false // since the last of the statements was completed, see commit
	for {
		message, receiveErr := conn.Frontend().Receive()
		if receiveErr != nil {
			if errors.Is(receiveErr, os.ErrDeadlineExceeded) {
				receiveErr = fmt.Errorf("no answer within %v: %w", commitTimeout, context.DeadlineExceeded)
			}
			return tags, proved, false, receiveErr
		}
		switch m := message.(type) {
		case *pgproto3.DataRow:
			if len(tags) == len(statements) {
				return tags, proved, false, errors.New("the server sent a row for a statement that was not sent")
			}
			if row := statements[len(tags)].row; row != nil && err == nil {
				err = row(func(dest ...any) error { return scan(m.Values, dest) })
			}
		case *pgproto3.CommandComplete:
			tags, warned = append(tags, pgconn.NewCommandTag(string(m.CommandTag))), false
			if len(tags) == len(statements) {
				proved = time.Now()
			}
		case *pgproto3.NoticeResponse:
			warned = warned || cutsShort(m.SeverityUnlocalized, m.Routine)
		case *pgproto3.ErrorResponse:
			pg := pgconn.ErrorResponseToPgError(m)
			err = pg
			switch pg.Code {
			case "0A000", "26000": // feature_not_supported: the result has other types now; invalid_sql_statement_name
				p.parsed.Clear()
			}
			if !p.db.survives(conn, pg) {
				return tags, proved, false, err
			}
		case *pgproto3.ReadyForQuery:
			switch {
			case err != nil:
			case len(tags) < len(statements):
				return tags, proved, false, fmt.Errorf("the server answered %d statements of %d", len(tags), len(statements))
			case warned:
				err = errCutShort
			default:
				p.parsed.add(statements)
			}
			return tags, proved, true, err
		}
	}
}

// parsed are the statements that the server of a connection has parsed, by their SQL.
type parsed struct{ *sync.Map }

// parsedOn returns those of a connection.
func parsedOn(conn *pgconn.PgConn) parsed {
	const name = "plantstore.parsed"
	all, ok := conn.CustomData()[name].(parsed)
	if !ok {
		all = parsed{new(sync.Map)}
		conn.CustomData()[name] = all
	}
	return all
}

// name returns the name under which a statement is prepared, once it is known to be.
func (p parsed) name(sql string) (name string, known bool) {
	if name, known := p.Load(sql); known {
		return name.(string), true
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(sql)) // never fails
	return "plantstore_" + strconv.FormatUint(hash.Sum64(), 16), false
}

func (p parsed) add(statements []statement) {
	for _, st := range statements {
		if name, known := p.name(st.sql); !known {
			p.Store(st.sql, name)
		}
	}
}

// The formats of values in the protocol's messages.
const (
	asText   = pgtype.TextFormatCode
	asBinary = pgtype.BinaryFormatCode
)

// encode encodes an argument of a statement, see there.
func encode(types *pgtype.Map, arg any) (value []byte, format int16, err error) {
	switch arg := arg.(type) {
	case string:
		return []byte(arg), asText, nil
	case int64:
		return binary.BigEndian.AppendUint64(nil, uint64(arg)), asBinary, nil
	case []int64:
		value, err = types.Encode(pgtype.Int8ArrayOID, asBinary, arg, nil)
		return value, asBinary, err
	case []string:
		value, err = types.Encode(pgtype.TextArrayOID, asBinary, arg, nil)
		return value, asBinary, err
	}
	return nil, 0, fmt.Errorf("an argument of a statement is a %T", arg)
}

// scan scans a row of a statement, as text, see there.
func scan(values [][]byte, dest []any) (err error) {
	for i, d := range dest {
		if i == len(values) {
			return fmt.Errorf("a row of a statement has %d values, want %d", len(values), len(dest))
		}
		switch d := d.(type) {
		case nil:
		case *int64:
			*d, err = strconv.ParseInt(string(values[i]), 10, 64)
		case *float64:
			*d, err = strconv.ParseFloat(string(values[i]), 64)
		default:
			err = fmt.Errorf("a value of a row is scanned into a %T", d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leave ends a batch's use of a pipeline. The last one gives the connection back, or ends
// it.
func (p *pipeline) leave() {
	if !p.group.part(p) {
		return
	}
	if !p.broken.Load() {
		if p.shareable {
			p.toPgx()
		}
		p.Release()
		return
	}
	go func() {
		conn := p.Conn.Conn().PgConn()
		ctx, cancel := context.WithTimeout(context.Background(), farewellTimeout)
		defer cancel()
		_ = conn.CancelRequest(ctx) // whatever is under way is lost anyhow
		_ = conn.Close(ctx)
		p.Release()
	}()
}

// toPgx has pgx set the deadlines from now on. If the connection is closed, that shows at
// its next use.
func (p *pipeline) toPgx() { _ = p.Conn.Conn().PgConn().Conn().SetDeadline(time.Time{}) }

// A place is where a batch is tried: a pipeline and, once it was refused there, a
// connection that it has to itself.
type place struct{ *pipeline }

// alone moves a batch to a connection that it has to itself.
func (at *place) alone() error {
	if at.group.keep(at.pipeline) {
		at.toPgx()
		return nil
	}
	at.leave()
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	conn, err := at.db.borrow(ctx, at.what, commitTimeout)
	if err != nil {
		at.pipeline = nil
		return err
	}
	at.pipeline = at.group.newPipeline(conn)
	at.shareable = false
	return nil
}
