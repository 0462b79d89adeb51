package postgres

import (
	"context"
	"errors"
	"testing"
)

// A principal has as many slots as it may, whichever plants it deletes, and each principal has
// its own.
func TestSlotsAreCounted(t *testing.T) {
	t.Parallel()
	var s slots
	ended, end := context.WithCancel(t.Context())
	end()
	key := slotKey{principal: "a"}
	for n := range 2 {
		if err := s.take(t.Context(), key, 2); err != nil {
			t.Errorf("slot %d of 2: %v; want none", n+1, err)
		}
	}
	if err := s.take(ended, key, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("slot 3 of 2: %v; want that it waits until the context ends", err)
	}
	if err := s.take(t.Context(), slotKey{principal: "b"}, 2); err != nil {
		t.Errorf("a slot of another principal: %v; want none", err)
	}
	s.give(key, 1)
	if err := s.take(t.Context(), key, 2); err != nil {
		t.Errorf("a slot that was given back: %v; want none", err)
	}
	s.give(key, 1)
	s.give(key, 1)
	s.give(slotKey{principal: "b"}, 1)
	if len(s.taken) != 0 {
		t.Errorf("%d keys are kept; want none", len(s.taken))
	}
}
