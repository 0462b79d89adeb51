package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"plantstore/internal/plant"
)

// Deletion budgets are kept by the ledger's trigger, in the transaction that deletes:
// see migrations/00004_api_tokens.sql. It refuses a transaction that would take more.
// Here is who has a budget told to the trigger, and what is done with a refusal.

// An overdrawn is the error of a transaction that was taken back because it would have
// deleted more than the budgets of some principals allow.
type overdrawn struct {
	principals map[string]overdraft
}

// An overdraft is what a principal has left, and in how many seconds it will have
// enough for what it asked for.
type overdraft struct {
	Principal string  `json:"principal"`
	Left      int64   `json:"left"`
	Seconds   float64 `json:"seconds"`
	until     time.Time
}

func (o *overdrawn) Error() string {
	return fmt.Sprintf("the deletion budgets of %d principals are used up", len(o.principals))
}

// newOverdrawn reads the trigger's error.
func newOverdrawn(pg *pgconn.PgError) error {
	var all []overdraft
	if err := json.Unmarshal([]byte(pg.Detail), &all); err != nil {
		return fault(pg).err
	}
	o := &overdrawn{make(map[string]overdraft)}
	for _, a := range all {
		a.until = time.Now().Add(time.Duration(a.Seconds * float64(time.Second)))
		o.principals[a.Principal] = a
	}
	return o
}

// within splits a batch that was refused into parts that fit, going by what is left of
// the budgets, and sends those who find nothing left back to look why.
func (o *overdrawn) within(batch []*member) (parts [][]*member) {
	var fits, rest []*member
	taken := make(map[string]int64)
	for _, m := range batch {
		a, over := o.principals[m.deletion.Principal]
		switch {
		case !over, taken[a.Principal] < a.Left:
			taken[a.Principal]++
			fits = append(fits, m)
		case a.Left > 0: // some of those that fit may have no plant to delete
			rest = append(rest, m)
		default:
			m.verdict <- verdict{next: look, err: o}
		}
	}
	for _, part := range [][]*member{fits, rest} {
		if len(part) > 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

// overBudget returns what a principal is told of its budget, or nil if that is not why
// a deletion was refused.
func overBudget(err error, principal string) *plant.OverBudgetError {
	if o, ok := errors.AsType[*overdrawn](err); ok {
		a := o.principals[principal]
		return &plant.OverBudgetError{Left: a.Left, Until: a.until}
	}
	over, _ := errors.AsType[*plant.OverBudgetError](err)
	return over
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
	turn                   chan struct{} // has an element while somebody looks
	until, asked, lastTold time.Time     // guarded by usedUp's mutex
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
	if now := time.Now(); !ok || now.After(a.until) || now.Sub(a.asked) > believeUsedUp {
		return nil
	}
	return &plant.OverBudgetError{Until: a.until}
}

// note remembers that a budget is used up if an attempt was refused for that, and
// returns what the principal is told then.
func (u *usedUp) note(d plant.Deletion, err error) *plant.OverBudgetError {
	over := overBudget(err, d.Principal)
	// What has something left would take other plants along. Another may not.
	if over != nil && over.Left == 0 {
		u.mu.Lock()
		defer u.mu.Unlock()
		a := u.account(d.Principal)
		a.until, a.asked = over.Until, time.Now()
	}
	return over
}

// tell marks the first error with which a principal is told that its budget is used up,
// for as long as it takes to come back.
func (u *usedUp) tell(d plant.Deletion, err error) {
	over, ok := errors.AsType[*plant.OverBudgetError](err)
	if !ok || over.Left > 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if a := u.account(d.Principal); time.Since(a.lastTold) >= d.Budget.Period {
		a.lastTold = time.Now()
		over.First = true
	}
}

// lookWithin explains why a deletion is refused whose principal has used its budget up:
// because of that, or it would be refused anyway, or was done before. Each principal
// has one look at a time.
func (p *Plants) lookWithin(ctx context.Context, d plant.Deletion, why *plant.OverBudgetError) verdict {
	p.used.mu.Lock()
	turns := p.used.account(d.Principal).turn
	p.used.mu.Unlock()
	select {
	case turns <- struct{}{}: // first come, first served
		defer func() { <-turns }()
	case <-ctx.Done():
		return verdict{err: p.db.shares.inVain(ctx.Err())}
	}
	return p.on(ctx, budgeted, 1, func(ctx context.Context, conn *pgx.Conn) verdict {
		return explain(ctx, conn, turn{Deletion: d}, why, false)
	})
}

// A budgetJSON is a principal's budget as the trigger reads it.
type budgetJSON struct {
	Principal string `json:"principal"`
	Most      int64  `json:"most"`
	Period    string `json:"period"`
}

// budgetsOf returns the setting plantstore.budgets for some deletions: empty if none of
// their principals has one.
func budgetsOf(deletions ...turn) (string, error) {
	var all []budgetJSON
	seen := make(map[string]bool)
	for _, d := range deletions {
		if d.Budget != (plant.Budget{}) && !seen[d.Principal] {
			seen[d.Principal] = true
			all = append(all, budgetJSON{d.Principal, d.Budget.Most, milliseconds(d.Budget.Period) + " milliseconds"})
		}
	}
	if all == nil {
		return "", nil
	}
	setting, err := json.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("encode budgets: %w", err)
	}
	return string(setting), nil
}
