package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// The connection may break at any message between a deletion and the database, and yet the
// answer is true: it agrees with the database, with late statements, and with the key's later
// answers.
//
// The test runs each play once unbroken to count its messages. Then it runs it once for each
// message of both directions and each way to break there. After the answer every plant is
// planted again and may be deleted. Only then do held bytes arrive. A sample of about 60 cases is
// tried; PLANTSTORE_TEST_EVERY_FAULT=5 tries every fifth, and 1 all of them.
func TestEveryConnectionFault(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	setup := pgtest.Connect(t, database.Super)
	execute(t, setup, `CREATE TABLE public.orders (plant bigint REFERENCES public.plants); CREATE INDEX ON public.orders (plant)`)
	var cases []faultCase
	simulated(t, func(t *testing.T) {
		s := newStage(t, database)
		for _, p := range plays() {
			passed, _, lies := s.give(t, p, nil)
			for _, lie := range lies {
				t.Errorf("%s, unbroken: %s", p.name, lie)
			}
			cases = append(cases, casesOf(p, passed)...)
		}
	})
	if t.Failed() {
		return
	}
	step, err := strconv.Atoi(cmp.Or(os.Getenv("PLANTSTORE_TEST_EVERY_FAULT"), "17")) // a prime leaves no way of breaking out
	if err != nil || step < 1 {
		t.Fatalf("PLANTSTORE_TEST_EVERY_FAULT: %v, want a number from 1", err)
	}
	t.Logf("%d of %d cases", (len(cases)+step-1)/step, len(cases))
	const stages = 8 // stages that run plays at the same time
	for n := range stages {
		t.Run(fmt.Sprint("stage ", n+1), func(t *testing.T) {
			t.Parallel()
			simulated(t, func(t *testing.T) {
				s := newStage(t, database)
				for i := n * step; i < len(cases); i += stages * step {
					c := cases[i]
					_, missed, lies := s.give(t, c.play, &c.breach)
					if missed > 0 {
						lies = append(lies, "the connection did not break")
					}
					for _, lie := range lies {
						t.Errorf("%s, broken by %+v: %s", c.play.name, c.breach, lie)
					}
				}
			})
		})
	}
}

// A play is a request to delete plants, with its preparations. SQL has {first} and {last}.
type play struct {
	name    string
	before  string   // SQL
	earlier string   // the answer to an earlier request with the keys, or none
	open    []breach // breaks the earlier request
	after   string   // SQL after that
	first   []breach // breaks the request itself before the breach that is tried
	keySent bool
	budget  bool
	want    []string
}

func plays() []play {
	const (
		there      = `INSERT INTO public.plants (id, name) VALUES ({first}, 'fern')`
		three      = `INSERT INTO public.plants (id, name) SELECT i, 'fern' FROM generate_series({first}, {last}) i`
		referenced = there + `; INSERT INTO public.orders VALUES ({first})`
		mixed      = there + `, ({first} + 1, 'fern'); INSERT INTO public.orders VALUES ({first} + 1)`
		gone       = there + `; DELETE FROM public.plants WHERE id = {first}`
	)
	lostAnswer := []breach{{direction: toService}}
	unsent := []breach{{direction: toServer, silent: true, late: afterAnswer}}
	uncommitted := []breach{{direction: toServer, after: 3, silent: true, late: afterAnswer}} // all but Sync
	unknown := plant.ErrUnknown.Error()
	return []play{
		{name: "lone", before: there, want: []string{"deleted"}},
		{name: "lone, with a budget", before: there, budget: true, want: []string{"deleted"}},
		{name: "batch", before: three, want: []string{"deleted", "deleted", "deleted"}},
		{name: "batch of all kinds", before: mixed, keySent: true, want: []string{"deleted", "referenced orders", "no such plant"}},
		{name: "replay", before: there, earlier: "deleted", keySent: true, want: []string{"replayed deleted"}},
		{name: "replay after the plant came back", before: there, earlier: "deleted", after: there, keySent: true, want: []string{"replayed deleted"}},
		{name: "referenced", before: referenced, want: []string{"referenced orders"}},
		{name: "referenced, client's key", before: referenced, keySent: true, want: []string{"referenced orders"}},
		{name: "no such plant", want: []string{"no such plant"}},
		{name: "no such plant, client's key", keySent: true, want: []string{"no such plant"}},
		{name: "planted after a no", earlier: "no such plant", after: there, keySent: true, want: []string{"replayed no such plant"}},
		{name: "deleted by SQL, client's key", before: gone, keySent: true, want: []string{"deleted earlier"}},
		{name: "after a lost answer", before: there, first: lostAnswer, want: []string{"deleted"}},
		{name: "after an open attempt", before: there, first: unsent, want: []string{"deleted"}},
		{name: "referenced, after an open attempt", before: referenced, first: unsent, want: []string{"referenced orders"}},
		{name: "no such plant, after an open attempt", first: unsent, want: []string{"no such plant"}},
		{name: "after unknown", before: there, earlier: unknown, open: unsent, keySent: true, want: []string{"deleted"}},
		{name: "after unknown, uncommitted", before: there, earlier: unknown, open: uncommitted, keySent: true, want: []string{plant.ErrBusy.Error()}},
		{name: "referenced, after unknown", before: referenced, earlier: unknown, open: unsent, keySent: true, want: []string{"referenced orders"}},
		{name: "no such plant, after unknown", earlier: unknown, open: unsent, keySent: true, want: []string{"no such plant"}},
	}
}

// A faultCase is a play with its breach.
type faultCase struct {
	play   play
	breach breach
}

// casesOf lists the breaches of a play with so many messages.
func casesOf(p play, messages [2]int) (cases []faultCase) {
	for _, d := range []direction{toServer, toService} {
		for after := range min(messages[d], 24) { // whoever waits for an open attempt asks again and again
			lates := []int{afterAnswer}
			if d == toServer { // nobody is there for an answer that is late
				lates = append(lates, 0, 1)
			}
			cases = append(cases, faultCase{p, breach{direction: d, after: after}})
			for _, late := range lates {
				cases = append(cases, faultCase{p, breach{d, after, true, late}})
			}
		}
	}
	return cases
}

// A stage runs plays, one after the other.
type stage struct {
	*DB
	link  *link
	admin *pgx.Conn
	next  int64
}

func newStage(t *testing.T, database pgtest.Database) *stage {
	l := simulable()
	l.batchLock, l.soloLock = 10*time.Millisecond, 10*time.Millisecond // by the server, in real time, where an attempt is open
	db, k := linked(t, database, l)
	return &stage{DB: db, link: k, admin: pgtest.Connect(t, database.Super), next: pgtest.IDs(t)}
}

const patience = 10 * time.Second // of a request, simulated

// give runs a play. It returns how many messages passed, how many breaches did not happen, and
// which answers were wrong.
func (s *stage) give(t *testing.T, p play, b *breach) (passed [2]int, missed int, lies []string) {
	t.Helper()
	ids := make([]int64, len(p.want))
	for n := range ids {
		ids[n] = s.next
		s.next++
	}
	world := func(sql string) {
		sql = strings.NewReplacer("{first}", fmt.Sprint(ids[0]), "{last}", fmt.Sprint(ids[len(ids)-1])).Replace(sql)
		if _, err := s.admin.Exec(context.Background(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	world(p.before)
	if p.earlier != "" {
		s.link.arm(p.open...)
		if got := s.request(t, p, ids, "earlier", true, time.Second); got[0] != p.earlier {
			t.Fatalf("%s: the earlier request got %q; want %q", p.name, got[0], p.earlier)
		}
	}
	if p.open != nil && p.open[0].after > 0 { // the server has it, and will execute it
		pgtest.Await(t, s.admin, isOpen, s.link.pids())
	}
	world(p.after)
	breaches := slices.Clone(p.first)
	if b != nil {
		breaches = append(breaches, *b)
	}
	s.link.arm(breaches...)
	answers := s.request(t, p, ids, "request", p.keySent, patience)
	passed, missed = s.link.disarm()
	var open bool
	if err := s.admin.QueryRow(t.Context(), isOpen, s.link.pids()).Scan(&open); err != nil {
		t.Fatal(err)
	}
	answered := s.inspect(t, ids)
	world(`DELETE FROM public.orders WHERE plant BETWEEN {first} AND {last};
		INSERT INTO public.plants (id, name) SELECT i, 'back' FROM generate_series({first}, {last}) i WHERE NOT EXISTS (SELECT FROM public.plants WHERE id = i)`)
	s.link.finish()
	settled := s.inspect(t, ids)
	again := s.request(t, p, ids, "again", true, patience)
	last := s.request(t, p, ids, "last", true, patience)

	for n, result := range answers {
		lie := func(format string, args ...any) {
			lies = append(lies, fmt.Sprintf("plant %d of %d got %q: ", n+1, len(ids), result)+fmt.Sprintf(format, args...))
		}
		a, z := answered[n], settled[n]
		no := strings.TrimPrefix(result, "replayed ")
		switch {
		case no == "deleted":
			if a.by == "" || z.by != a.by || a.there && result == "deleted" {
				lie("the ledger has it deleted by %q, then by %q, and the plant is there: %t", a.by, z.by, a.there)
			}
		case result == plant.ErrBusy.Error() || result == plant.ErrUnavailable.Error():
			if z.by == "request" {
				lie("this request deleted the plant")
			}
		case result == plant.ErrUnknown.Error():
		default:
			if a.by != "" || z.by != "" {
				lie("the key deleted the plant, by request %q, then %q", a.by, z.by)
			}
			if z.refused == "" && (p.keySent || p.first != nil) || z.refused != "" && !strings.HasPrefix(no, z.refused) {
				lie("%q is recorded", z.refused)
			}
		}
		if result != p.want[n] && !(open && slices.Contains([]string{plant.ErrBusy.Error(), plant.ErrUnavailable.Error(), plant.ErrUnknown.Error()}, result)) {
			lie("want %q; an attempt is open: %t", p.want[n], open)
		}
		final := "replayed deleted"
		if z.refused != "" {
			final = "replayed " + z.refused
		}
		if again[n] != final && (z.by != "" || z.refused != "" || again[n] != "deleted") || last[n] != final {
			lie("the same key got %q and %q later; want %q", again[n], last[n], final)
		}
	}
	return passed, missed, lies
}

// isOpen reports whether an attempt on a silent connection has uncommitted changes.
const isOpen = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = ANY ($1) AND backend_xid IS NOT NULL)`

// request has a principal of its own ask for plants in one batch, by a replica of its own,
// and returns the result of each.
func (s *stage) request(t *testing.T, p play, ids []int64, name string, keySent bool, timeout time.Duration) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	results := make([]string, len(ids))
	plants := s.DB.Plants()
	release := plants.batches.hold()
	var all sync.WaitGroup
	for n, id := range ids {
		d := plant.Deletion{Plant: plant.ID(id), Principal: fmt.Sprint("client-", ids[0]), RequestID: name, Key: fmt.Sprint("key-", n), KeySent: keySent}
		if p.budget {
			d.Budget = plant.Budget{Most: 10, Period: time.Hour}
		}
		all.Go(func() {
			results[n] = inWords(plants.Delete(ctx, d))
		})
		synctest.Wait() // the batch has them in order
	}
	release()
	all.Wait()
	return results
}

// A sight is the state of a plant and its key in the database.
type sight struct {
	there   bool
	by      string // the request that deleted it under the key
	refused string // the recorded refusal, as outcomeOf has it
}

func (s *stage) inspect(t *testing.T, ids []int64) []sight {
	t.Helper()
	rows, _ := s.admin.Query(t.Context(), `SELECT EXISTS (SELECT FROM public.plants WHERE id = i),
			coalesce(string_agg(d.request_id, ' ') FILTER (WHERE d.refused IS NULL), ''),
			coalesce(string_agg(CASE d.refused WHEN 40401 THEN 'no such plant' WHEN 40402 THEN 'deleted earlier' WHEN 40900 THEN 'referenced' ELSE d.refused::text END, ' '), '')
		FROM unnest($1::bigint[]) WITH ORDINALITY u (i, n) LEFT JOIN plantstore.deletions d ON d.plant_id = i AND d.idempotency_key = 'key-' || n - 1
		GROUP BY i, n ORDER BY n`, ids)
	sights, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v sight, err error) {
		return v, row.Scan(&v.there, &v.by, &v.refused)
	})
	if err != nil {
		t.Fatal(err)
	}
	return sights
}

// An outage shorter than a request costs it time, in a batch and alone. A longer one ends it.
func TestShortOutageOnlyDelaysDeletions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first := s.plant(t, 2)
	simulated(t, func(t *testing.T) {
		db, l := linked(t, pgtest.Shared(t), simulable())
		s := s.on(db)
		for n, budget := range []plant.Budget{{}, {Most: 1, Period: time.Hour}} {
			d := s.of(first+plant.ID(n), "key")
			d.Budget = budget
			l.setDown(true)
			db.reset()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := s.Delete(ctx, d); !errors.Is(err, plant.ErrUnavailable) || !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("plant %d, an outage that is longer: %v; want ErrUnavailable with its cause", n, err)
			}
			time.AfterFunc(time.Minute, func() { l.setDown(false) })
			s.expect(t, d, "deleted")
		}
	})
}
