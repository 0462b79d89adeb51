package postgres

import (
	"slices"
	"time"
)

// lanes are the batches that a group has under way.
//
// While one batch travels, or waits for its commit to reach the disk, the database can
// work on others. So there are as many as it needs to have the next at hand when it is
// done with one, and no more: each further one makes the batches smaller, and a batch
// costs the database as much as some twenty members more. That is one to work on, and as
// many as it could work on while one travels and waits, the last one for a fifth of its time
// at least. (Twice as many took up to a quarter more of its processor, and gained nothing.)
//
// A batch tells how long the database worked on it. What it took beyond that is its
// overhead, unless it waited for others of its kind. Taken for overhead, such waiting would
// make for more lanes, and they for more waiting. So only a batch that meets no other can
// show that the overhead is longer than it was thought to be. Every so often one is made to
// start when no other is under way.
//
// Batches start one after the other, evenly over the time that one takes. Those that wait
// for the same write to the disk end together, and their clients come back together.
// If each took a lane as it came, the first few would have all of them, alone, and the
// others would wait for a whole trip.
//
// Two services on one database would each take its wait for the other's batches for
// overhead, and both would open more lanes, up to all. So batches that start beside others
// bring the overhead down to that of the quickest eighth of the last ones: some meet nobody.
// The very quickest may have caught the end of another's commit.
//
// Where commits are slow, many catch the end of one, and the overhead seems short. So some
// commits are timed by themselves, see pipeline. For their sake there are three lanes at
// the most: a batch that is written to the disk, one that is to be written next, and one
// that is worked on. More that waited for the same write could have been one batch.
//
// Batches that are under way together share a connection if that costs them nothing, see
// joins and pipeline.
//
// Beside the database there is one lane. At a millisecond's distance there are two or
// three if a few clients ask at once, and fewer again if more of them make the batches,
// and so the work, larger. A database that is busy with something else works longer on
// a batch, and gets fewer.
type lanes struct {
	most int // connections that there are for them, if they share none
	// open has for each the moment from which it counts as slow: then others pass it.
	open    []time.Time
	started time.Time // when the last of them was opened

	work     time.Duration // that the database had with a batch lately, as a rule
	overhead time.Duration // what a batch takes beyond that

	unshared bool // the batch that was last to start met no other, except slow ones
	crowded  int  // how many batches there were since such a one

	last  [32]time.Duration // the overhead of the last batches
	count int               // how many there were

	commits [5]time.Duration // what the last commits took that were timed
	seen    int              // how many were
	commit  time.Duration    // what one takes, as a rule

	// wary is until when no batch joins another, as one held those behind it up.
	wary time.Time
}

const (
	// slowBatch is the least time after which a batch counts as slow. Most take a few
	// milliseconds.
	slowBatch = 10 * time.Millisecond
	// localOverhead is so much overhead that it counts as none: the switch to a process on
	// the same machine, a commit on its disk, and the switch back, while others have the
	// processors. No lane is gained by that.
	localOverhead = 500 * time.Microsecond
	// mostForCommits is how many lanes are wanted because commits are slow. (As many as for an
	// overhead of that length took a third more of the database's processor, and gained nothing
	// with 8 clients.)
	mostForCommits = 3
	// mostCrowded is how many batches go beside others before one goes alone. That
	// takes the time of two.
	mostCrowded = 2000
)

// wanted is how many batches keep the database busy.
func (l *lanes) wanted() int {
	if l.work == 0 || l.crowded >= mostCrowded {
		return 1
	}
	during := func(idle time.Duration) int {
		return 1 + int(float64(max(idle-localOverhead, 0))/float64(l.work)+0.8)
	}
	return max(during(l.overhead), min(during(l.commit), mostForCommits))
}

// next is when another lane may be opened, if there is a connection for it.
func (l *lanes) next(now time.Time) time.Time {
	inTime, first, last := l.inTime(now)
	switch wanted := l.wanted(); {
	case inTime == 0:
		return now
	case inTime < wanted:
		// Or as soon as all are slow, if that is before.
		apart := l.started.Add((l.overhead + l.work) / time.Duration(wanted))
		return now.Add(min(apart.Sub(now), last.Sub(now)))
	default:
		return first
	}
}

// enter opens a lane, if one more is wanted now. It returns the moment from which the
// lane's batch counts as slow, by which leave knows it.
func (l *lanes) enter(now time.Time) (due time.Time, opened bool) {
	if len(l.open) >= l.most || l.next(now).After(now) {
		return time.Time{}, false
	}
	inTime, _, _ := l.inTime(now)
	l.unshared = inTime == 0
	l.started = now
	due = now.Add(l.slow())
	l.open = append(l.open, due)
	return due, true
}

// slow is how long a batch may take before it counts as slow.
func (l *lanes) slow() time.Duration { return max(2*(l.overhead+l.work), slowBatch) }

// leave closes a lane.
func (l *lanes) leave(due time.Time) {
	at := slices.Index(l.open, due)
	l.open = slices.Delete(l.open, at, at+1)
}

// inTime is how many lanes do not count as slow, and from when on the first and the last
// of them will. What a batch takes changes, so they need not be in the order in which
// they were opened.
func (l *lanes) inTime(now time.Time) (n int, first, last time.Time) {
	for _, due := range l.open {
		if !due.After(now) {
			continue
		}
		if n == 0 || due.Before(first) {
			first = due
		}
		if due.After(last) {
			last = due
		}
		n++
	}
	return n, first, last
}

// note learns from a batch. Work that was held up counts as twice the usual.
func (l *lanes) note(trip, work time.Duration) {
	work = max(min(work, trip), time.Microsecond) // the database's clock may be set meanwhile
	overhead := max(trip-work, 0)
	if l.work == 0 {
		l.work = work
	}
	l.work += (min(work, 2*l.work) - l.work) / 8
	l.last[l.count%len(l.last)] = overhead
	l.count++
	switch {
	case l.overhead == 0, l.unshared && overhead < l.overhead, l.unshared && l.crowded >= mostCrowded:
		l.overhead = overhead
	case l.unshared:
		l.overhead += (overhead - l.overhead) / 16
	case overhead < l.overhead && l.count >= len(l.last):
		last := l.last
		slices.Sort(last[:])
		l.overhead = min(l.overhead, last[len(last)/8])
	}
	l.crowded++
	if l.unshared {
		l.crowded = 0
	}
}

// committed learns from the commit of a batch. Three slow ones of the last five make a slow
// rule, and three quick ones end it: a disk or a standby that gets slower shows soon, and one
// commit that was held up does not matter.
func (l *lanes) committed(took time.Duration) {
	l.commits[l.seen%len(l.commits)] = took
	l.seen++
	last := l.commits
	known := last[:min(l.seen, len(last))]
	slices.Sort(known)
	l.commit = known[(len(known)-1)/2]
}

// A load is what a pipeline has under way, see lanes.joins.
type load struct {
	batches int
	// free is when the next batch has to be sent to arrive when the database is done with
	// the others.
	free  time.Time
	began time.Time // when the first batch was sent
	heard time.Time // when the last answer came or, before that, the first batch was sent
}

const (
	// mostAhead is how many batches may be ahead of one on a pipeline, and how many batches'
	// work. Should all of them turn out to be slow by nature, it waits for each. (With the
	// work of one instead of four, batches at a millisecond's distance were spread over
	// several connections again, for a seventh of their rate.)
	mostAhead = 4
	// pipelineTime is how long batches may join a pipeline. Then the pool has its connection
	// back, and may have reasons to close it.
	pipelineTime = time.Second
	// heldUp is a time after which a batch held up those behind it: some statement, a deferred
	// trigger, or the commit is slow by nature. Others of the kind may follow within
	// waryTime.
	heldUp   = 100 * time.Millisecond
	waryTime = 30 * time.Second
)

// joins reports whether a batch may join those of a pipeline.
//
// Those on a connection wait for each other's commits. That costs next to nothing as long as
// commits are not most of the overhead. Where they are more than two thirds of it, as with a
// disk or a standby that is slow, each batch has a connection of its own, and they are
// committed together. Nor does a batch join where one is slow, or was lately, or many are
// ahead.
func (l *lanes) joins(c load, now time.Time) bool {
	return 3*l.commit <= 2*l.overhead && c.batches <= mostAhead && c.free.Sub(now) <= mostAhead*l.work &&
		now.Sub(c.heard) < l.slow() && now.Sub(c.began) < pipelineTime && now.After(l.wary)
}

// sends notes that a batch is sent on a pipeline.
func (l *lanes) sends(c *load, now time.Time) {
	if c.began.IsZero() {
		c.began, c.heard = now, now
	}
	if c.free.Before(now) {
		c.free = now
	}
	c.free = c.free.Add(l.work + l.commit)
}

// answered notes that an answer came to a batch, or none in time.
func (l *lanes) answered(c *load, sent, now time.Time) {
	took := now.Sub(sent)
	if c.heard.After(sent) { // it had to wait for its turn
		took = now.Sub(c.heard)
	}
	if took > heldUp {
		l.wary = now.Add(waryTime)
	}
	c.heard = now
}
