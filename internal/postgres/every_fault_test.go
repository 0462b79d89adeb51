package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/pgtest"
	"plantstore/internal/plant"
)

// Whatever breaks, and at whichever byte of a deletion's exchange with the database,
// the client is not told a lie: not in what it is told, not by what runs after it
// was told, and not when it asks again.
//
// For each play the bytes of both directions are counted. Then it is given again and
// again, and each time the connection breaks at another of them: between two messages in
// each way that there is; and within each message, of which nothing is done until all of it
// is there, once, or in some plays at every byte. There the ways take turns. The client has
// its answer, the world changes so that every plant is there and may be deleted, and only
// then everything arrives that was held back. All that is compared with the database.
//
// All of it takes up to half an hour. With PLANTSTORE_TEST_EVERY_FAULT=5, every 5th of those
// cases is tried; without it connections break between two messages of the protocol only,
// and every 41st of those cases is. (Primes, so that no way is left out.) Always tried are
// those of which nothing is sent.
func TestEveryFault(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	storeOn(t, database, "").exec(t, `CREATE TABLE items (plant bigint REFERENCES plants); CREATE INDEX ON items (plant)`)
	var next atomic.Int64
	onStage := func(t *testing.T, prepared map[string]string, perform func(*testing.T, *stage)) {
		simulated(t, func(t *testing.T) {
			s, l := newLink(t, database, places, prepared)
			defer time.Sleep(time.Minute) // until the driver has closed what it gave up
			perform(t, &stage{store: s, link: l, next: &next})
		})
	}

	// Without a breach: which statements there are, and then how many bytes.
	prepared := make(map[string]string)
	onStage(t, nil, func(t *testing.T, s *stage) {
		for _, p := range plays() {
			if p.first == nil && !p.abandoned { // what breaks there is a statement, not its preparation
				s.give(t, p, nil)
			}
		}
		maps.Copy(prepared, s.link.parsed)
	})
	lies := make(map[string][]int) // with the bytes at which they were told
	var cases []faultCase
	step, everyByte := 41, false
	if every := os.Getenv("PLANTSTORE_TEST_EVERY_FAULT"); every != "" {
		var err error
		if step, err = strconv.Atoi(every); err != nil || step < 1 {
			t.Fatalf("PLANTSTORE_TEST_EVERY_FAULT is %q, want a number from 1 on", every)
		}
		everyByte = true
	}
	onStage(t, prepared, func(t *testing.T, s *stage) {
		for _, p := range plays() {
			// In some runs a connection has idled for so long that it is pinged first. What
			// comes twice in a row is what comes usually.
			var passed traffic
			for runs, messages := 0, [2]int{}; runs < 20; runs++ {
				var told []string
				passed, told = s.give(t, p, nil)
				for _, lie := range told {
					lies[p.name+", without a breach: "+lie] = nil
				}
				before := messages
				if messages = [2]int{len(passed.starts[toServer]), len(passed.starts[toService])}; messages == before {
					break
				}
			}
			cases = append(cases, casesOf(p, passed, everyByte)...)
		}
	})
	var some []faultCase
	for i, c := range cases {
		if i%step == 0 || c.breach.keepsAll(c.play) {
			some = append(some, c)
		}
	}
	cases = some

	var mu sync.Mutex
	var stages sync.WaitGroup
	var taken atomic.Int64
	for i := range 16 {
		stages.Go(func() {
			t.Run(fmt.Sprint("stage ", i+1), func(t *testing.T) {
				onStage(t, prepared, func(t *testing.T, s *stage) {
					for i := taken.Add(1); i <= int64(len(cases)); i = taken.Add(1) {
						c := cases[i-1]
						_, told := s.give(t, c.play, &c.breach)
						mu.Lock()
						for _, lie := range told {
							lie = fmt.Sprintf("%s, %v: %s", c.play.name, c.breach, lie)
							lies[lie] = append(lies[lie], c.breach.after)
						}
						mu.Unlock()
					}
				})
			})
		})
	}
	stages.Wait()
	for _, lie := range slices.Sorted(maps.Keys(lies)) {
		t.Errorf("%s; after %s bytes", lie, ranges(lies[lie]))
	}
	t.Logf("%d cases", len(cases))
}

// A play is a deletion, or three that share a batch, in a world of its own.
type play struct {
	name string
	// everyByte: connections break at every byte, not only once within each message.
	everyByte bool
	// keySent: the client chose the key.
	keySent bool
	// before is SQL that makes the world. Its plants are %[1]d, %[2]d and %[3]d.
	before string
	// past is what came of an earlier request with the key, which after follows.
	past  string
	after string
	// abandoned: an earlier request with the key reached nobody, and is still under
	// way.
	abandoned bool
	// first is what happened to the first attempt of the request. meanwhile is SQL
	// that follows it; then somebody locks the plant until the request is answered.
	first     []breach
	meanwhile string
	// want is what comes of the deletion of each plant, where nothing breaks.
	want []string
}

// What comes of a deletion.
const (
	deleted     = "deleted"
	replayed    = "deleted, replayed"
	referredTo  = "referred to"
	earlier     = "deleted earlier"
	missing     = "not found"
	busy        = "busy"
	unavailable = "unavailable"
	unresolved  = "unknown"
)

func plays() []play {
	const (
		there    = `INSERT INTO plants (id, name) VALUES (%[1]d, 'Boston fern');`
		referred = there + `INSERT INTO items VALUES (%[1]d);`
		gone     = there + `DELETE FROM plants WHERE id = %[1]d;`
		three    = `INSERT INTO plants (id, name) SELECT i, 'Boston fern' FROM generate_series(%[1]d, %[3]d) i;`
		back     = `INSERT INTO plants (id, name) VALUES (%[1]d, 'Boston fern') ON CONFLICT DO NOTHING; INSERT INTO items VALUES (%[1]d);`
		mixed    = `INSERT INTO plants (id, name) VALUES (%[1]d, 'Boston fern'), (%[2]d, 'Boston fern'); INSERT INTO items VALUES (%[2]d);`
	)
	lost := []breach{{direction: toService, way: byReset}}
	open := []breach{{direction: toServer, way: byHolding}}
	return []play{
		{name: "single", everyByte: true, before: there, want: []string{deleted}},
		{name: "batch of three", before: three, want: []string{deleted, deleted, deleted}},
		{name: "batch with a plant that is referred to and one that is not there", keySent: true, before: mixed, want: []string{deleted, referredTo, missing}},
		{name: "replay", keySent: true, before: there, past: deleted, want: []string{replayed}},
		{name: "replay after the plant came back", keySent: true, before: there, past: deleted, after: there, want: []string{replayed}},
		{name: "referred to", before: referred, want: []string{referredTo}},
		{name: "referred to, the client's key", keySent: true, before: referred, want: []string{referredTo}},
		{name: "never there", want: []string{missing}},
		{name: "never there, the client's key", keySent: true, want: []string{missing}},
		{name: "deleted earlier", before: gone, want: []string{earlier}},
		{name: "deleted earlier, the client's key", keySent: true, before: gone, want: []string{earlier}},
		{name: "referred to again", keySent: true, before: referred, past: referredTo, want: []string{referredTo}},
		{name: "never there, and then there", keySent: true, past: missing, after: there, want: []string{deleted}},
		{name: "after a lost answer", everyByte: true, before: there, first: lost, want: []string{deleted}},
		{name: "after a lost answer, and the plant came back", before: there, first: lost, meanwhile: back, want: []string{deleted}},
		{name: "after an attempt that is open", before: there, first: open, want: []string{deleted}},
		{name: "referred to, after an attempt that is open", before: referred, first: open, want: []string{referredTo}},
		{name: "never there, after an attempt that is open", first: open, want: []string{missing}},
		{name: "after a request that is open", keySent: true, before: there, abandoned: true, want: []string{deleted}},
		{name: "referred to, after a request that is open", keySent: true, before: referred, abandoned: true, want: []string{referredTo}},
		{name: "never there, after a request that is open", keySent: true, abandoned: true, want: []string{missing}},
	}
}

// A faultCase is a play in which a connection breaks.
type faultCase struct {
	play   play
	breach breach
}

// within returns a byte within the message before the one of a number: another part of each.
func within(passed traffic, d direction, number int) int {
	starts := append(slices.Clone(passed.starts[d]), passed.bytes[d])
	begin, size := starts[number-1], starts[number]-starts[number-1]
	return begin + 1 + 7*number%(size-1)
}

// casesOf lists the breaches of a play, of which it is known what passes in it.
func casesOf(p play, passed traffic, everyByte bool) (cases []faultCase) {
	for _, d := range []direction{toServer, toService} {
		add := func(after int, way way, outage bool) {
			cases = append(cases, faultCase{p, breach{direction: d, after: after, way: way, outage: outage}})
		}
		ways := []way{byReset, byEnd, bySilence}
		if d == toServer { // nobody is there for answers that come late
			ways = append(ways, byHolding)
		}
		for after := range passed.bytes[d] {
			number, between := slices.BinarySearch(passed.starts[d], after) // of the message that would come, or the next
			switch {
			case between:
				for _, way := range ways {
					add(after, way, false)
				}
				add(after, byReset, true)
				add(after, byFatal, false)
				add(after, byFatal, true)
			case everyByte && (p.everyByte || after == within(passed, d, number)):
				add(after, ways[after%len(ways)], false)
			}
		}
	}
	return cases
}

// keepsAll reports whether nothing is sent in a play that has it.
func (b breach) keepsAll(p play) bool {
	return b.outage && b.way == byReset && b.direction == toServer && b.after == 0 && p.first == nil
}

// excuses are what may be told instead of the outcome.
func (b breach) excuses(p play) []string {
	switch {
	case b.keepsAll(p):
		return []string{unavailable}
	case b.outage, b.mute(): // a silent attempt may keep the plant locked
		return []string{busy, unavailable, unresolved}
	}
	return nil
}

// A stage is where plays are given, one after the other.
type stage struct {
	store
	link *link
	next *atomic.Int64 // how many plays were given, on all stages
}

// places is the size of a stage's pool.
const places = 3

// hurry is the deadline of a play's request: that of an attempt in a batch, and
// some for another one.
const hurry = commitTimeout + margin + 100*time.Millisecond

// give gives a play, and returns what passed and where an answer does not hold.
func (s *stage) give(t *testing.T, p play, b *breach) (traffic, []string) {
	t.Helper()
	for tries := 1; ; tries++ {
		passed, missed, lies := s.giveOnce(t, p, b)
		switch {
		case missed == 0:
			return passed, lies
		case tries == 20:
			return passed, append(lies, "it did not come about")
		}
		// A statement took too long, and the deletion another way. A machine may stall for a
		// few tries.
	}
}

func (s *stage) giveOnce(t *testing.T, p play, b *breach) (passed traffic, missed int, lies []string) {
	t.Helper()
	var ids []int64
	var args []any
	first := 1_000_001 + s.next.Add(int64(len(p.want))) - int64(len(p.want)) // in a row, and all of one length
	for i := range p.want {
		id := first + int64(i)
		ids, args = append(ids, id), append(args, id)
	}
	world := func(sql string) error {
		if sql == "" {
			return nil
		}
		_, err := s.owner.Exec(t.Context(), fmt.Sprintf(sql, args...))
		return err
	}
	if err := world(p.before); err != nil {
		t.Fatal(err)
	}
	if p.past != "" {
		s.must(t, p.past, ids, p.keySent, patience, nil)
		s.letRefusalsAge(t, ids)
	}
	if err := world(p.after); err != nil {
		t.Fatal(err)
	}
	if p.abandoned {
		s.must(t, unresolved, ids, p.keySent, hurry, []breach{{direction: toServer, way: byHolding, outage: true}})
	}
	before := s.look(t, ids)
	for _, g := range []*group{s.plants.group, s.plants.looks, s.plants.fates} {
		g.mu.Lock()
		g.lanes.work = 0 // statements have all the time that they may have, as the machine is busy
		g.mu.Unlock()
	}

	deadline, breaches, unlock := hurry, slices.Clone(p.first), func() {}
	tooSlow := 0 // the answer that was lost was not that of a commit
	if p.first != nil {
		deadline += commitTimeout
	}
	if p.first != nil && p.first[0].direction == toService {
		// What follows depends on whether the deletion is committed when its answer is lost,
		// of which a part may come before. A server that meets the break sooner may end it.
		breaches[0].first = func() {
			for looks := 0; looks < 500 && s.look(t, ids)[0].own == 0; looks++ {
			}
		}
		breaches[0].then = func() {
			if s.look(t, ids)[0].own == 0 {
				tooSlow++
				return
			}
			if p.meanwhile == "" {
				return
			}
			if err := world(p.meanwhile); err != nil {
				t.Error(err)
			}
			locker, err := s.owner.Begin(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			unlock = func() { _ = locker.Rollback(t.Context()) }
			if _, err := locker.Exec(t.Context(), `SELECT FROM plants WHERE id = ANY ($1) FOR UPDATE`, ids); err != nil {
				t.Error(err)
			}
		}
	}
	if b != nil {
		breaches = append(breaches, *b)
	}
	told, passed, missed := s.delete(t, ids, "request", p.keySent, deadline, breaches)
	unlock() // it has committed nothing
	answered := s.look(t, ids)

	for _, id := range ids {
		s.exec(t, fmt.Sprintf(`DELETE FROM items WHERE plant = %[1]d;
			INSERT INTO plants (id, name) SELECT %[1]d, 'Boston fern' WHERE NOT EXISTS (SELECT FROM plants WHERE id = %[1]d)`, id))
	}
	s.awaitEnd(t, s.link.deliver())
	settled := s.look(t, ids)
	s.letRefusalsAge(t, ids)
	again, _, _ := s.delete(t, ids, "retry", true, patience, nil)
	after := s.look(t, ids)

	for i := range ids {
		lie := func(format string, args ...any) {
			lies = append(lies, fmt.Sprintf("told %q: ", told[i])+fmt.Sprintf(format, args...))
		}
		switch told[i] {
		case deleted, replayed:
			if answered[i].own != 1 || settled[i].own != 1 {
				lie("%d deletions by its key are recorded, and %d at last, want 1", answered[i].own, settled[i].own)
			}
			if told[i] == replayed && answered[i].there != before[i].there {
				lie("the plant is there: %v, want it as before", answered[i].there)
			}
			if told[i] == deleted && p.meanwhile == "" && answered[i].there {
				lie("the plant is there")
			}
		case referredTo, earlier, missing, busy, unavailable:
			if answered[i].own != before[i].own {
				lie("the plant was deleted by its key")
			}
		}
		// A 503 is about this request, and no promise for an earlier one.
		promise := told[i] != unresolved && (!p.abandoned || told[i] != busy && told[i] != unavailable)
		if promise && (settled[i].own != answered[i].own || !settled[i].there) {
			lie("the plant was deleted afterwards")
		}
		if told[i] != p.want[i] && (b == nil || !slices.Contains(b.excuses(p), told[i])) {
			lie("want %q", p.want[i])
		}
		wantAgain, wantAfter := deleted, sight{there: false, own: 1}
		if settled[i].own > 0 {
			wantAgain, wantAfter = replayed, settled[i]
		}
		if again[i] != wantAgain || after[i] != wantAfter {
			lie("the retry was told %q and left %+v, want %q and %+v", again[i], after[i], wantAgain, wantAfter)
		}
	}
	return passed, missed + tooSlow, lies
}

// letRefusalsAge makes refusals older than any request. Their age is real, and that of
// requests simulated.
func (s *stage) letRefusalsAge(t *testing.T, ids []int64) {
	t.Helper()
	s.exec(t, `UPDATE plant_deletions SET deleted_at = deleted_at - interval '1 hour' WHERE plant IS NULL AND plant_id = ANY ($1)`, ids)
}

// must asks for plants, all of which want comes of.
func (s *stage) must(t *testing.T, want string, ids []int64, keySent bool, deadline time.Duration, breaches []breach) {
	t.Helper()
	told, _, _ := s.delete(t, ids, "before", keySent, deadline, breaches)
	if slices.ContainsFunc(told, func(told string) bool { return told != want }) {
		t.Fatalf("the request before was told %q, want %q", told, want)
	}
}

// delete asks for plants, in one batch, and returns what came of each.
func (s *stage) delete(t *testing.T, ids []int64, requestID string, keySent bool, deadline time.Duration, breaches []breach) (told []string, passed traffic, missed int) {
	t.Helper()
	// Every place of the pool gets a connection that was used just now. Those who
	// ask wait for one, and so for each other.
	var release []func()
	for range places {
		conn, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release = append(release, conn.Release)
	}
	told = make([]string, len(ids))
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var askers sync.WaitGroup
	for i, id := range ids {
		d := deletion(id, "k")
		d.RequestID, d.KeySent = requestID, keySent
		askers.Go(func() { told[i] = outcome(s.plants.Delete(ctx, d)) })
	}
	synctest.Wait()
	// Batches get quick with time, and their time limits lose a digit; and one in some
	// has its commit looked at, by a message of its own: the bytes would not be those
	// that were counted. So each request meets a service that is new.
	s.plants.group.mu.Lock()
	l := &s.plants.group.lanes
	*l = lanes{most: l.most, open: l.open}
	s.plants.group.mu.Unlock()
	s.plants.group.commitSamples.Store(0)
	s.link.arm(breaches)
	for _, release := range release {
		release()
	}
	askers.Wait()
	passed, missed = s.link.up()
	return told, passed, missed
}

// outcome says what came of a deletion.
func outcome(result plant.Result, err error) string {
	_, isReferred := errors.AsType[*plant.ReferencedError](err)
	_, isEarlier := errors.AsType[*plant.DeletedEarlierError](err)
	switch {
	case err == nil && result.Replayed:
		return replayed
	case err == nil:
		return deleted
	case isReferred:
		return referredTo
	case isEarlier:
		return earlier
	case errors.Is(err, plant.ErrNotFound):
		return missing
	case errors.Is(err, plant.ErrUnknown): // first: it is around one of the others
		return unresolved
	case errors.Is(err, plant.ErrBusy):
		return busy
	case errors.Is(err, plant.ErrUnavailable):
		return unavailable
	}
	return err.Error()
}

// A sight is what the database has of a plant.
type sight struct {
	there bool
	own   int // deletions recorded under the request's key
}

func (s *stage) look(t *testing.T, ids []int64) []sight {
	t.Helper()
	seen := make([]sight, len(ids))
	for i, id := range ids {
		err := s.owner.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM plants WHERE id = $1), count(*)
			FROM plant_deletions WHERE plant_id = $1 AND deleted_by = 'tester' AND idempotency_key = 'k' AND plant IS NOT NULL`, id).
			Scan(&seen[i].there, &seen[i].own)
		if err != nil {
			t.Fatal(err)
		}
	}
	return seen
}

// awaitEnd returns when processes of the server have ended.
func (s *stage) awaitEnd(t *testing.T, pids []uint32) {
	t.Helper()
	for running := 1; running > 0; {
		err := s.owner.QueryRow(t.Context(), `SELECT count(*) FROM unnest($1::int[]) pid, pg_stat_get_activity(pid) a, pg_sleep(0.001)`, pids).
			Scan(&running)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// ranges writes numbers as in "1-3, 7".
func ranges(numbers []int) string {
	slices.Sort(numbers)
	var parts []string
	for from := 0; from < len(numbers); {
		to := from
		for to+1 < len(numbers) && numbers[to+1] <= numbers[to]+1 {
			to++
		}
		part := fmt.Sprint(numbers[from])
		if numbers[to] > numbers[from] {
			part += fmt.Sprint("-", numbers[to])
		}
		parts = append(parts, part)
		from = to + 1
	}
	return strings.Join(parts, ", ")
}
