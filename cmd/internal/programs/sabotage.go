package programs

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Sabotages of the service. The checker of cmd/chaos has to catch each of them. Nothing in
// the service's source knows of them: a build replaces pieces of it.
const (
	ForgetLedger    = "forget-ledger"    // ignores that the ledger has a deletion with the request's key
	ForgetRefusal   = "forget-refusal"   // returns a refusal without recording it
	ForgetLost      = "forget-lost"      // answers 503 although an attempt may be committed
	ForgetTrigger   = "forget-trigger"   // deletes plants while the ledger's trigger is disabled
	BelieveLost     = "believe-lost"     // takes a commit that was not answered for a success
	BelieveWarnings = "believe-warnings" // takes a commit for durable although its wait for the standby was cut short
)

// An edit replaces a piece of a source file, which has to be there exactly once.
type edit struct {
	file     string // in this module
	old, new string
}

func sabotages() map[string][]edit {
	const plants, statement, errors, session = "internal/postgres/plants.go", "internal/postgres/statement.go", "internal/postgres/errors.go", "internal/postgres/session.go"
	return map[string][]edit{
		ForgetLedger:    {{plants, "if r.code == codeDeleted {", "if r.code == codeDeleted { return true, plant.ErrNotFound }; if false {"}},
		ForgetRefusal:   {{plants, "isOpen := e.lost || e.deletion.KeySent", "isOpen := false"}},
		ForgetLost:      {{plants, "if e.lost {", "if false {"}},
		ForgetTrigger:   {{statement, "AND tgenabled IN ('O', 'A')", ""}},
		BelieveLost:     {{errors, "return lost", "return deleted"}},
		BelieveWarnings: {{session, `n.Routine == "SyncRepWaitForLSN"`, "false"}},
	}
}

// Sabotages returns the names of all sabotages, sorted.
func Sabotages() []string { return slices.Sorted(maps.Keys(sabotages())) }

// editsOf returns the edits of a sabotage, none for an empty name.
func editsOf(sabotage string) ([]edit, error) {
	edits, ok := sabotages()[sabotage]
	if !ok && sabotage != "" {
		return nil, fmt.Errorf("there is no sabotage %q: want %s", sabotage, strings.Join(Sabotages(), " or "))
	}
	return edits, nil
}

// writeOverlay writes edited copies of the module's files, and the added ones, to a new
// folder. It returns the path of the file that go build -overlay reads.
func writeOverlay(root, folder string, edits []edit, added map[string]string) (path string, err error) {
	texts := make(map[string]string) // by path of the original
	for _, e := range edits {
		original := filepath.Join(root, e.file)
		if texts[original] == "" {
			b, err := os.ReadFile(original)
			if err != nil {
				return "", err
			}
			texts[original] = string(b)
		}
		if n := strings.Count(texts[original], e.old); n != 1 {
			return "", fmt.Errorf("%s has the text %q %d times, want once: adapt cmd/internal/programs/sabotage.go", e.file, e.old, n)
		}
		texts[original] = strings.Replace(texts[original], e.old, e.new, 1)
	}
	for file, text := range added {
		path := filepath.Join(root, file)
		if _, err := os.Lstat(path); err == nil {
			return "", fmt.Errorf("%s is there already", file)
		}
		texts[path] = text
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		return "", err
	}
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for i, original := range slices.Sorted(maps.Keys(texts)) {
		edited := filepath.Join(folder, strconv.Itoa(i)+filepath.Ext(original))
		if err := os.WriteFile(edited, []byte(texts[original]), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[original] = edited
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	path = filepath.Join(folder, "overlay.json")
	return path, os.WriteFile(path, b, 0o600)
}
