package postgres

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"plantstore/internal/auth"
	"plantstore/internal/plant"
)

// numbered returns a digest like no other.
func numbered(i int) auth.Digest { return auth.Digest{byte(i >> 8), byte(i)} }

func TestALookupQueueReadsOneBatchAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const duration = 10 * time.Millisecond
		var sizes []int
		reading := false
		q := lookupQueue{read: func(digests []auth.Digest) (map[auth.Digest]auth.Token, error) {
			if reading {
				t.Error("two statements at a time")
			}
			reading = true
			time.Sleep(duration)
			reading = false
			sizes = append(sizes, len(digests))
			return nil, nil
		}}
		q.ask(numbered(0))
		synctest.Wait() // the first is under way
		for i := range maxLookups + 2 {
			q.ask(numbered(i))
			q.ask(numbered(i)) // together
		}
		last := q.ask(numbered(maxLookups + 1))
		<-last.done
		synctest.Wait()
		if want := []int{1, maxLookups, 2}; len(sizes) != 3 || sizes[0] != want[0] || sizes[1] != want[1] || sizes[2] != want[2] {
			t.Errorf("tokens in each statement: %v, want %v", sizes, want)
		}
		q.nudge()
		time.Sleep(2 * duration)
		synctest.Wait()
		if len(sizes) != 4 || sizes[3] != 0 {
			t.Errorf("tokens in each statement: %v, want one more without any, after a nudge", sizes)
		}
	})
}

// Whoever gave up leaves no work behind: an outage would gather ever more of it.
func TestALookUpThatNobodyWaitsForIsNotMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		read := make(map[auth.Digest]bool)
		q := lookupQueue{read: func(digests []auth.Digest) (map[auth.Digest]auth.Token, error) {
			time.Sleep(time.Second)
			for _, digest := range digests {
				read[digest] = true
			}
			return nil, nil
		}}
		q.ask(numbered(0))
		synctest.Wait()
		for i, patience := range map[int]time.Duration{1: time.Millisecond, 2: time.Minute} {
			go func() {
				want := map[int]error{1: plant.ErrUnavailable, 2: auth.ErrInvalidToken}[i]
				if _, err := lookUp(in(t, patience), &q, numbered(i)); !errors.Is(err, want) {
					t.Errorf("look-up %d: %v, want %v", i, err, want)
				}
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if read[numbered(1)] || !read[numbered(2)] {
			t.Errorf("read %v; want the look-up that was waited for, and not the other", read)
		}
	})
}

// A database that is down is asked again until the deadline, with pauses.
func TestALookUpIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		q := lookupQueue{read: func(digests []auth.Digest) (map[auth.Digest]auth.Token, error) {
			if tries++; tries < 4 {
				return nil, context.DeadlineExceeded
			}
			return map[auth.Digest]auth.Token{digests[0]: {Principal: auth.Principal{Name: "back-office"}}}, nil
		}}
		began := time.Now()
		if token, err := lookUp(in(t, time.Minute), &q, numbered(1)); err != nil || token.Name != "back-office" {
			t.Errorf("look-up = %+v, %v; want back-office", token, err)
		}
		if tries != 4 || time.Since(began) == 0 {
			t.Errorf("%d tries in %s, want 4 with pauses", tries, time.Since(began))
		}
	})
}
