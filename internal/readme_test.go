package internal_test

import (
	"cmp"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"plantstore/internal/readme"
)

var fence = regexp.MustCompile("(?ms)^ *```.*?^ *```$")

// anchors are the names of a manual's headings in links.
func anchors(text string) map[string]bool {
	all := make(map[string]bool)
	notInAnchors := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := notInAnchors.ReplaceAllString(strings.ToLower(heading[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}

func TestLinksOfManualsResolve(t *testing.T) {
	t.Parallel()
	all := readme.Manuals(t)
	linked := map[string]bool{"README.md": true}
	for manual, text := range all {
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			target, anchor, _ := strings.Cut(link[1], "#")
			file := path.Join(path.Dir(manual), cmp.Or(target, path.Base(manual)))
			linked[file], linked[path.Join(file, "README.md")] = true, true
			_, err := os.Stat(filepath.Join(readme.Top(t), file))
			switch {
			case err != nil:
				t.Errorf("%s links to %s: %v", manual, link[1], err)
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

func TestWayOfARequestNamesFunctionsOfItsFiles(t *testing.T) {
	t.Parallel()
	for _, row := range readme.Table(t, "internal/README.md", "function") {
		_, link, _ := strings.Cut(strings.TrimSuffix(row[1], ")"), "](")
		file := path.Join("internal", link)
		for name := range strings.SplitSeq(row[0], ", ") {
			if !regexp.MustCompile(`\b(func|FUNCTION)\b[^\n]*\b` + name + `\b`).MatchString(readme.Read(t, file)) {
				t.Errorf("internal/README.md says that %s is in %s, but it is not", name, file)
			}
		}
	}
}

func TestManualsNameExistingMakeTargets(t *testing.T) {
	t.Parallel()
	makefile := readme.Read(t, "Makefile")
	code, target := regexp.MustCompile("(?s)```.*?```|`[^`\n]+`"), regexp.MustCompile(`\bmake ([a-z]+)\b`)
	for manual, text := range readme.Manuals(t) {
		for _, code := range code.FindAllString(text, -1) {
			for _, m := range target.FindAllStringSubmatch(code, -1) {
				if !strings.Contains(makefile, "\n"+m[1]+": ## ") {
					t.Errorf("%s names 'make %s', which the Makefile does not have", manual, m[1])
				}
			}
		}
	}
}

func TestEveryPackageIsInTheArchitecture(t *testing.T) {
	t.Parallel()
	_, architecture, _ := strings.Cut(readme.Read(t, "internal/README.md"), "\n## Architecture\n")
	architecture, _, _ = strings.Cut(architecture, "\nImports run one way")
	for room := range mayImport {
		room, inside := strings.CutPrefix(room, "internal/")
		room, _, _ = strings.Cut(room, "/")
		if inside && !strings.Contains(architecture, "| ["+room+"]("+room+") |") {
			t.Errorf("internal/README.md does not say what internal/%s does", room)
		}
	}
}
