package server

import (
	"errors"
	"math"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// Rate is how many deletions a principal may ask for: so many in a time, and so many at
// once after a pause. This process counts for itself.
type Rate struct {
	Count int
	In    time.Duration
	Burst int
}

// limitedPrincipals bounds how many principals are kept in mind. Who has not been heard
// of for longest begins anew.
const limitedPrincipals = 8192

// rates limits how often each principal may ask. Nil lets everybody pass.
type rates struct {
	limit    Rate
	limiters *lru.Cache[string, *rate.Limiter]
}

// newRates returns nil for the zero Rate.
func newRates(limit Rate) *rates {
	if limit == (Rate{}) {
		return nil
	}
	limiters, err := lru.New[string, *rate.Limiter](limitedPrincipals)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &rates{limit, limiters}
}

// admit counts a request, or returns a *tooFastError.
func (r *rates) admit(principal string) error {
	if r == nil {
		return nil
	}
	limiter, ok := r.limiters.Get(principal)
	if !ok {
		limiter = rate.NewLimiter(rate.Limit(float64(r.limit.Count)/r.limit.In.Seconds()), r.limit.Burst)
		if other, ok, _ := r.limiters.PeekOrAdd(principal, limiter); ok {
			limiter = other
		}
	}
	if limiter.Allow() {
		return nil
	}
	// Not Reserve and Cancel: of several at a time, Cancel gives only the last one back.
	return &tooFastError{time.Duration((1 - limiter.Tokens()) / float64(limiter.Limit()) * float64(time.Second))}
}

// A tooFastError refuses a principal that sends too many requests.
type tooFastError struct{ wait time.Duration }

func (e *tooFastError) Error() string { return "too many requests of this principal" }

// RetryAfter is when the next one may pass.
func (e *tooFastError) RetryAfter() time.Duration { return e.wait }

// retryAfter is the Retry-After of an error, in whole seconds: 1 unless the error knows
// better.
func retryAfter(err error) int {
	var e interface{ RetryAfter() time.Duration }
	if !errors.As(err, &e) {
		return 1
	}
	return max(1, int(math.Ceil(e.RetryAfter().Seconds())))
}
