package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"plantstore/internal/auth"
	"plantstore/internal/localpg"
	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// withTokens runs a test in a bubble with a service that polls for tokens, and an owner's
// connection.
func withTokens(t *testing.T, database pgtest.Database, test func(t *testing.T, db *DB, l *link, owner *pgx.Conn)) {
	t.Helper()
	simulated(t, func(t *testing.T) {
		db, l := linked(t, database, simulable())
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go db.Run(ctx)
		test(t, db, l, pgtest.Connect(t, database.Owner))
	})
}

func create(t *testing.T, owner *pgx.Conn, name string, expires time.Time, budget plant.Budget) string {
	t.Helper()
	token, err := CreatePrincipal(t.Context(), owner, name, []string{auth.ScopeDelete}, expires, budget)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// authenticate checks the result of a token, and how long that takes at most.
func authenticate(t *testing.T, db *DB, what, token string, within time.Duration, want error) auth.Principal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	time.Sleep(time.Nanosecond) // a poll of this very instant may be older than the token
	began := time.Now()
	p, err := db.Tokens().Authenticate(ctx, token)
	if took := time.Since(began); !errors.Is(err, want) || took > within {
		t.Errorf("%s: %v after %s; want %v within %s", what, err, took, want, within)
	}
	return p
}

// name is a principal's that no other test has.
func name(t *testing.T) string { return fmt.Sprint("token-", pgtest.IDs(t)) }

const onePoll = time.Second + time.Millisecond // polls that somebody waits for are a second apart

func TestTokenChangesAreNoticed(t *testing.T) {
	t.Parallel()
	withTokens(t, pgtest.Shared(t), func(t *testing.T, db *DB, l *link, owner *pgx.Conn) {
		authenticate(t, db, "unknown, and there is none", auth.NewToken(), onePoll, auth.ErrInvalidToken)
		budget := plant.Budget{Most: 5, Period: 90 * time.Minute}
		name, expires := name(t), time.Now().Add(time.Minute)
		token := create(t, owner, name, expires, budget)
		got := authenticate(t, db, "new", token, onePoll, nil)
		if diff := cmp.Diff(auth.Principal{Name: name, Scopes: []string{auth.ScopeDelete}, Budget: budget}, got); diff != "" {
			t.Errorf("principal (-want +got):\n%s", diff)
		}
		authenticate(t, db, "known", token, time.Nanosecond, nil)
		authenticate(t, db, "never issued", auth.NewToken(), onePoll, auth.ErrInvalidToken)
		authenticate(t, db, "mistyped", token[:len(token)-1]+"_", time.Nanosecond, auth.ErrInvalidToken)

		budget.Most = 7
		if err := SetBudget(t.Context(), owner, name, budget); err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaults.poll)
		if got := authenticate(t, db, "budget raised", token, time.Nanosecond, nil).Budget; got != budget {
			t.Errorf("budget %v; want %v", got, budget)
		}
		time.Sleep(time.Until(expires) - time.Second)
		authenticate(t, db, "a second before it expires", token, onePoll, nil)
		time.Sleep(time.Second)
		authenticate(t, db, "expired", token, onePoll, auth.ErrInvalidToken)

		another, err := RotateToken(t.Context(), owner, name, time.Hour, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		authenticate(t, db, "rotated", another, onePoll, nil)
		if _, err := RevokeTokens(t.Context(), owner, name); err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaults.poll)
		authenticate(t, db, "revoked", another, onePoll, auth.ErrInvalidToken)
	})
}

// Unknown tokens cost one poll a second, however many they are.
func TestTokenPollsAreRare(t *testing.T) {
	t.Parallel()
	withTokens(t, pgtest.Shared(t), func(t *testing.T, db *DB, l *link, owner *pgx.Conn) {
		authenticate(t, db, "unknown", auth.NewToken(), onePoll, auth.ErrInvalidToken)
		began := time.Now()
		for range 5 {
			authenticate(t, db, "unknown", auth.NewToken(), onePoll, auth.ErrInvalidToken)
		}
		if took := time.Since(began).Round(time.Millisecond); took < 5*time.Second {
			t.Errorf("five polls for unknown tokens took %s; want 5s at least", took)
		}
	})
}

// A database that is away never makes a token invalid. A snapshot that was not confirmed for
// a while authenticates nobody.
func TestTokensDuringADatabaseOutage(t *testing.T) {
	t.Parallel()
	withTokens(t, pgtest.Shared(t), func(t *testing.T, db *DB, l *link, owner *pgx.Conn) {
		token := create(t, owner, name(t), time.Time{}, plant.Budget{})
		authenticate(t, db, "new", token, onePoll, nil)
		authenticate(t, db, "known", token, onePoll, nil)
		l.setDown(true)
		db.reset()
		time.Sleep(defaults.maxAge - defaults.poll)
		authenticate(t, db, "known, database away for less than the snapshot's time", token, time.Nanosecond, nil)
		authenticate(t, db, "unknown, database away", auth.NewToken(), time.Minute, plant.ErrUnavailable)
		authenticate(t, db, "known, stale", token, time.Minute, plant.ErrUnavailable)
		if age := db.Tokens().age(); age < 2*time.Minute {
			t.Errorf("the snapshot is %s old; want over two minutes", age)
		}
		l.setDown(false)
		authenticate(t, db, "known, database back", token, defaults.poll, nil)
		synctest.Wait()
		if n := strings.Count(l.log.String(), "tokens cannot be read"); n != 1 {
			t.Errorf("the log has %d lines of the outage; want 1:\n%s", n, &l.log)
		}
	})
}

func TestLastUseOfATokenIsRecorded(t *testing.T) {
	t.Parallel()
	withTokens(t, pgtest.New(t), func(t *testing.T, db *DB, l *link, owner *pgx.Conn) {
		used := create(t, owner, "used", time.Time{}, plant.Budget{})
		create(t, owner, "unused", time.Time{}, plant.Budget{})
		authenticate(t, db, "used", used, onePoll, nil)
		// A last use that cannot be recorded is recorded later, by a commit that waits for no standby.
		execute(t, owner, `ALTER TABLE plantstore.tokens ADD CONSTRAINT unused CHECK (last_used_at IS NULL)`)
		time.Sleep(defaults.noteUses + 3*defaults.poll)
		synctest.Wait()
		if n := strings.Count(l.log.String(), "last use of tokens not recorded"); n != 1 {
			t.Errorf("the log has %d lines of the last use; want 1:\n%s", n, &l.log)
		}
		execute(t, owner, `ALTER TABLE plantstore.tokens DROP CONSTRAINT unused`)
		execute(t, owner, `CREATE FUNCTION public.refuse_to_wait() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN IF current_setting('synchronous_commit') <> 'off' THEN RAISE EXCEPTION 'this commit waits'; END IF; RETURN NEW; END $$;
			CREATE TRIGGER refuse_to_wait BEFORE UPDATE ON plantstore.tokens FOR EACH ROW EXECUTE FUNCTION public.refuse_to_wait()`)
		time.Sleep(defaults.noteUses + defaults.poll)
		synctest.Wait()
		for _, p := range []string{"used", "unused"} {
			if last := principalNamed(t, owner, p).Tokens[0].LastUsedAt; last.IsZero() == (p == "used") {
				t.Errorf("the %s token was last used at %v", p, last)
			}
		}
		authenticate(t, db, "its version has not moved", used, time.Nanosecond, nil)
	})
}

// If a process is stopped just after a poll, the poll's answer still counts afterwards. Otherwise
// a good token would be rejected as invalid.
func TestLateTokenPollStillCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens := newTokens(&DB{limits: defaults})
		token := auth.NewToken()
		digest, err := auth.DigestOf(token)
		if err != nil {
			t.Fatal(err)
		}
		answer := make(chan error)
		go func() {
			_, err := tokens.Authenticate(t.Context(), token)
			answer <- err
		}()
		synctest.Wait()
		tokens.snapshot.Store(&snapshot{confirmed: time.Now(), tokens: map[auth.Digest]*knownToken{digest: {used: new(atomic.Bool)}}})
		time.Sleep(2 * defaults.maxAge)
		close(tokens.polled)
		if err := <-answer; err != nil {
			t.Errorf("Authenticate: %v; want none", err)
		}
	})
}

// A standby may lag behind a revocation, so its tokens authenticate nobody. With several servers
// in the URL, the service uses the primary.
func TestTokensComeFromAPrimary(t *testing.T) {
	t.Parallel()
	primary, database := ownServer(t)
	owner := pgtest.Connect(t, database.Super)
	token := create(t, owner, "client", time.Time{}, plant.Budget{})
	standby, err := primary.Standby(t.Context(), localpg.Options{Settings: pgtest.Settings()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Close() })
	onStandby := pgtest.Connect(t, standby.URL("postgres", "plantstore"))
	execute(t, onStandby, `SELECT pg_wal_replay_pause()`)
	if _, err := RevokeTokens(t.Context(), owner, "client"); err != nil {
		t.Fatal(err)
	}
	behind := standby.URL("plantstore_app", "plantstore")
	lagging := opened(t, Config{URL: behind}).Tokens()
	var known snapshot // from when it was the primary
	if err := onStandby.QueryRow(t.Context(), `SELECT version FROM plantstore.tokens_version`).Scan(&known.version); err != nil {
		t.Fatal(err)
	}
	for _, last := range []*snapshot{nil, &known} {
		lagging.snapshot.Store(last)
		if err := lagging.poll(t.Context()); !errors.Is(err, errNoVersion) {
			t.Errorf("a poll of the standby after the snapshot %v: %v; want %v", last, err, errNoVersion)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p, err := lagging.Authenticate(ctx, token); !errors.Is(err, plant.ErrUnavailable) {
		t.Errorf("a revoked token on the standby: %+v, %v; want ErrUnavailable", p, err)
	}
	rows, err := onStandby.Exec(t.Context(), readTokens)
	if err != nil || rows.RowsAffected() != 0 {
		t.Errorf("the standby returns %d rows of tokens, %v; want none", rows.RowsAffected(), err)
	}
	either := fmt.Sprintf("host=%s,%s port=%d user=plantstore_app dbname=plantstore", onStandby.Config().Host, owner.Config().Host, owner.Config().Port)
	if err := opened(t, Config{URL: either}).Tokens().poll(t.Context()); err != nil {
		t.Errorf("a poll of either server: %v; want that of the primary", err)
	}
}
