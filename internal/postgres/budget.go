package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/plant"
)

// Deletion budgets are kept by the ledger's trigger, in the transaction that deletes:
// see migrations/00004_api_tokens.sql. It refuses a transaction that would take more.
// Here the trigger is told who has a budget, and is decided what follows a refusal.

// newOverBudget reads the trigger's error: how many plants a principal may still delete,
// in how many seconds what it asked for, what its budget is, and until when that was
// lifted.
func newOverBudget(pg *pgconn.PgError) error {
	var over struct {
		Left        int64         `json:"left"`
		Seconds     float64       `json:"seconds"`
		Most        int64         `json:"most"`
		Nanoseconds time.Duration `json:"nanoseconds"`
		Lifted      time.Time     `json:"lifted"`
	}
	if err := json.Unmarshal([]byte(pg.Detail), &over); err != nil {
		return fault(pg).err
	}
	return &plant.OverBudgetError{
		Left: over.Left, Until: time.Now().Add(time.Duration(over.Seconds * float64(time.Second))),
		Budget: plant.Budget{Most: over.Most, Period: over.Nanoseconds}, Lifted: over.Lifted,
	}
}

// overBudget returns what a principal is told of its budget, or nil if that is not why
// a deletion was refused. It is a copy: each of a batch is told for itself.
func overBudget(err error) *plant.OverBudgetError {
	over, ok := errors.AsType[*plant.OverBudgetError](err)
	if !ok {
		return nil
	}
	told := *over
	return &told
}

const (
	// believeUsedUp is how long a budget counts as used up before the database is
	// asked again: it may have been raised.
	believeUsedUp = time.Second
	// accounts bounds the principals whose budgets are known to be used up.
	accounts = 4096
)

// usedUp knows who has used a budget up. Their deletions would take batches back, so
// they are not tried: what they are told is looked up, for one at a time of each
// principal, and waits in nobody's way.
type usedUp struct {
	mu       sync.Mutex
	accounts *lru.Cache[string, *account]
}

// An account is a principal's.
type account struct {
	turn chan struct{} // has an element while somebody looks
	// Guarded by usedUp's mutex: what was said last, when, and what was logged last.
	said, logged          plant.OverBudgetError
	asked, lastTimeLogged time.Time
}

func newUsedUp() usedUp {
	cache, err := lru.New[string, *account](accounts)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return usedUp{accounts: cache}
}

// account returns a principal's. It is called with mu held.
func (u *usedUp) account(principal string) *account {
	a, ok := u.accounts.Get(principal)
	if !ok {
		a = &account{turn: make(chan struct{}, 1)}
		u.accounts.Add(principal, a)
	}
	return a
}

// by returns why a principal may not delete, or nil if it may, for all that is known, or
// if an attempt of the deletion was lost and comes first.
func (u *usedUp) by(d plant.Deletion, unsure bool) *plant.OverBudgetError {
	if unsure || d.Budget == (plant.Budget{}) {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	a, ok := u.accounts.Get(d.Principal)
	if now := time.Now(); !ok || now.After(a.said.Until) || now.Sub(a.asked) > believeUsedUp {
		return nil
	}
	return overBudget(&a.said)
}

// note remembers that a budget is used up if an attempt was refused for that, and
// returns what the principal is told then.
func (u *usedUp) note(d plant.Deletion, err error) *plant.OverBudgetError {
	over := overBudget(err)
	// What has something left would take other plants along. Another may not.
	if over != nil && over.Left == 0 {
		u.mu.Lock()
		defer u.mu.Unlock()
		a := u.account(d.Principal)
		a.said, a.asked = *over, time.Now()
	}
	return over
}

// tell marks the first error with which a principal is told that its budget is used up,
// for as long as it takes to come back. Another budget is told anew, and so is one that
// was lifted meanwhile.
func (u *usedUp) tell(d plant.Deletion, err error) {
	over, ok := errors.AsType[*plant.OverBudgetError](err)
	if !ok || over.Left > 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.account(d.Principal)
	if a.logged.Budget != over.Budget || !a.logged.Lifted.Equal(over.Lifted) || time.Since(a.lastTimeLogged) >= over.Budget.Period {
		a.logged, a.lastTimeLogged = *over, time.Now()
		over.First = true
	}
}

// lookWithin explains why a deletion is refused whose principal has used its budget up:
// because of that, or it would be refused anyway, or was done before. Each principal
// has one look at a time.
func (p *Plants) lookWithin(ctx context.Context, d plant.Deletion, why *plant.OverBudgetError, unsure bool) verdict {
	p.used.mu.Lock()
	turns := p.used.account(d.Principal).turn
	p.used.mu.Unlock()
	select {
	case turns <- struct{}{}: // first come, first served
		defer func() { <-turns }()
	case <-ctx.Done():
		return verdict{err: p.db.shares.inVain(ctx.Err())}
	}
	return p.on(ctx, budgeted, nth(1), func(ctx context.Context, conn *pgx.Conn) verdict {
		return explain(ctx, conn, d, because(turn{Deletion: d}, why, unsure), remaining(ctx))
	})
}

// holds knows whose budgets are held: somebody has locked the row for longer than a batch
// waits for it. All deletions of such a principal need that row. The first that meets the
// lock waits for it on a connection for locked ones. The others wait for the first, and
// take no connection that another principal's need.
type holds struct {
	mu   sync.Mutex
	open map[string]chan struct{} // by principal; closed when the first waits no longer
}

// A spender is a deletion that may have to wait for its principal's budget.
type spender struct {
	holds    *holds
	deletion plant.Deletion
	held     bool // that was so in its last attempt
	first    bool // it is the one that waits in the database
}

// waitsFor returns nil if the next attempt may be made now, or else a channel that is
// closed when it may. A deletion that is unsure of an earlier attempt may find that out
// first.
func (s *spender) waitsFor(unsure bool) <-chan struct{} {
	if s.deletion.Budget == (plant.Budget{}) || s.first || unsure && !s.held {
		return nil
	}
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	return s.holds.open[s.deletion.Principal]
}

// note learns from an attempt.
func (s *spender) note(v verdict) {
	s.held = v.held
	if !v.held {
		s.leave()
		return
	}
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	if s.holds.open == nil {
		s.holds.open = make(map[string]chan struct{})
	}
	if s.holds.open[s.deletion.Principal] == nil {
		s.holds.open[s.deletion.Principal] = make(chan struct{})
		s.first = true
	}
}

// leave lets the others go on, if they wait for this one.
func (s *spender) leave() {
	if !s.first {
		return
	}
	s.first = false
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	close(s.holds.open[s.deletion.Principal])
	delete(s.holds.open, s.deletion.Principal)
}

// budgetOf returns the setting plantstore.budget for the deletions of a turn's principal:
// empty if it has none.
func budgetOf(d turn) []string {
	if d.Budget == (plant.Budget{}) {
		return []string{}
	}
	setting := []string{d.Principal, strconv.FormatInt(d.Budget.Most, 10), milliseconds(d.Budget.Period) + " milliseconds"}
	if d.patience > 0 {
		setting = append(setting, milliseconds(d.patience))
	}
	return setting
}
