package internal_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"plantstore/internal/readme"
)

// manuals returns every README.md of the module, and engines.md, by their paths from
// the top.
func manuals(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	top := readme.Top(t)
	err := filepath.WalkDir(top, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == ".bin"):
			return filepath.SkipDir
		case entry.Name() != "README.md" && entry.Name() != "engines.md":
			return nil
		}
		name, err := filepath.Rel(top, file)
		if err == nil {
			all[filepath.ToSlash(name)] = readme.Read(t, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func exists(t *testing.T, name string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(readme.Top(t), name))
	return err == nil
}

var fence = regexp.MustCompile("(?ms)^ *```.*?^ *```$")

// codeOf returns what a manual has marked as code: the spans in its sentences, and
// the lines of its blocks.
func codeOf(text string) []string {
	var code []string
	for _, block := range fence.FindAllString(text, -1) {
		code = append(code, strings.Split(block, "\n")...)
	}
	for _, span := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		code = append(code, span[1])
	}
	return code
}

// anchors are the names that a browser finds the headings of a manual by.
func anchors(text string) map[string]bool {
	all := make(map[string]bool)
	notInAnchors := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := notInAnchors.ReplaceAllString(strings.ToLower(heading[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}

func TestTheFrontDoorIsShort(t *testing.T) {
	t.Parallel()
	const most = 150
	if got := strings.Count(readme.Read(t, "README.md"), "\n"); got > most {
		t.Errorf("README.md has %d lines, want %d at most: what is for operators, DBAs or maintainers has a README.md of its own", got, most)
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	all := manuals(t)
	linked := map[string]bool{"README.md": true}
	for manual, text := range all {
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			target, anchor, _ := strings.Cut(link[1], "#")
			file := manual
			if target != "" {
				file = path.Join(path.Dir(manual), target)
			}
			linked[file] = true
			switch {
			case !exists(t, file):
				t.Errorf("%s links to %s, which does not exist", manual, link[1])
			case anchor != "" && !anchors(all[file])[anchor]:
				t.Errorf("%s links to %s, and %s has no such heading", manual, link[1], file)
			}
		}
	}
	for manual := range all {
		if !linked[manual] {
			t.Errorf("no manual links to %s", manual)
		}
	}
}

// A file is named by its path from the top, or from the README.md that names it.
func TestNamedFilesExist(t *testing.T) {
	t.Parallel()
	file := regexp.MustCompile(`^(\./)?((cmd|internal|migrations|deploy|\.ci|\.github)/[\w./-]+|\w[\w/-]*\.(go|sql|md|sh|ya?ml)|\w+/)$`)
	for manual, text := range manuals(t) {
		for _, code := range codeOf(text) {
			for word := range strings.FieldsSeq(code) {
				word = strings.TrimSuffix(strings.Trim(word, `'"();,$`), "...")
				if file.MatchString(word) && !exists(t, word) && !exists(t, path.Join(path.Dir(manual), word)) {
					t.Errorf("%s names %s, which does not exist", manual, word)
				}
			}
		}
	}
}

// A function or variable is named by "`this` in [file](file)".
func TestNamedCodeIsWhereItIsSaidToBe(t *testing.T) {
	t.Parallel()
	place := regexp.MustCompile("`(\\w+)` in \\[[^]]+\\]\\(([^)#]+)\\)")
	for manual, text := range manuals(t) {
		for _, named := range place.FindAllStringSubmatch(text, -1) {
			file := path.Join(path.Dir(manual), named[2])
			if !regexp.MustCompile(`\b` + named[1] + `\b`).MatchString(readme.Read(t, file)) {
				t.Errorf("%s says that %s is in %s, but it is not", manual, named[1], file)
			}
		}
	}
}

func TestNamedTargetsAndTestsExist(t *testing.T) {
	t.Parallel()
	makefile := readme.Read(t, "Makefile")
	target := regexp.MustCompile(`\bmake ([a-z]+)\b`)
	test := regexp.MustCompile(`-run '?(\w+)'? \./([\w/]+)`)
	for manual, text := range manuals(t) {
		for _, code := range codeOf(text) {
			for _, m := range target.FindAllStringSubmatch(code, -1) {
				if !strings.Contains(makefile, "\n"+m[1]+": ## ") {
					t.Errorf("%s names 'make %s', which the Makefile does not have", manual, m[1])
				}
			}
			for _, m := range test.FindAllStringSubmatch(code, -1) {
				if !hasTest(t, m[2], m[1]) {
					t.Errorf("%s names the test %s, which %s does not have", manual, m[1], m[2])
				}
			}
		}
	}
}

func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := fs.Glob(os.DirFS(filepath.Join(readme.Top(t), folder)), "*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.Contains(readme.Read(t, path.Join(folder, file)), "\nfunc "+name+"(t ") {
			return true
		}
	}
	return false
}

// Who looks for something finds a line of README.md or internal/README.md that says
// so and links to the file that has it.
func TestTheMapLeadsThere(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ question, file, has string }{
		{"Where is an answer such as 40900 written?", "internal/server/errors.go", `40900, "referenced"`},
		{"What happens when the connection dies at commit?", "internal/postgres/verdict.go", "func judge("},
		{"What happens when the connection dies at commit?", "internal/postgres/delete.go", "case ask:"},
		{"Where is the ledger's trigger?", "migrations/00003_record_deletions.sql", "CREATE TRIGGER plantstore_record_deletion"},
		{"A setting", "cmd/plantstore/serve.go", "type serveCommand struct"},
		{"A metric", "internal/server/metrics.go", "func newMetrics("},
		{"An error code", "internal/server/errors.go", "var catalogue = "},
		{"Why are deletions committed in groups?", "internal/postgres/group.go", "A group commits deletions together."},
		{"How do I write a migration?", "migrations/README.md", "## How to write a migration"},
		{"What does a deletion send to PostgreSQL?", "internal/postgres/statements.go", "DELETE FROM ONLY public.plants"},
	} {
		led := false
		for _, manual := range []string{"README.md", "internal/README.md"} {
			for line := range strings.Lines(readme.Read(t, manual)) {
				for _, link := range regexp.MustCompile(`\]\(([^)#]+)`).FindAllStringSubmatch(line, -1) {
					led = led || strings.Contains(line, tt.question) && path.Join(path.Dir(manual), link[1]) == tt.file
				}
			}
		}
		if !led {
			t.Errorf("%q does not lead to %s", tt.question, tt.file)
		}
		if !strings.Contains(readme.Read(t, tt.file), tt.has) {
			t.Errorf("%q leads to %s, which does not have %q", tt.question, tt.file, tt.has)
		}
	}
	question, answer := "How do I run one test on PostgreSQL 17?", "make test POSTGRES=17"
	if !regexp.MustCompile(regexp.QuoteMeta(question) + `.*` + regexp.QuoteMeta(answer)).MatchString(readme.Read(t, "README.md")) {
		t.Errorf("README.md does not answer %q with %q", question, answer)
	}
}

// Every package has a line on the map.
func TestEveryRoomIsOnTheMap(t *testing.T) {
	t.Parallel()
	rooms, _, _ := strings.Cut(readme.Read(t, "internal/README.md"), "\nImports run one way")
	for room := range mayImport {
		room, inside := strings.CutPrefix(room, "internal/")
		room, _, _ = strings.Cut(room, "/")
		if inside && !strings.Contains(rooms, "| ["+room+"]("+room+") |") {
			t.Errorf("internal/README.md does not say what internal/%s is for", room)
		}
	}
}
