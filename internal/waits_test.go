package internal_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"plantstore/internal/readme"
)

// mayWait has the functions of tests that wait for time, or ask again, on a real clock.
var mayWait = map[string]string{
	"cmd/plantstore/alerts_prometheus_test.go until":    "Prometheus does not announce that an alert fires",
	"cmd/chaos/slow_test.go TestCheckerCatchesSabotage": "faults come by chance, and each run is twice as long",
}

// A test that waits for a time fails on a busy machine, and one that tries again passes a
// product that is wrong nine times in ten. Tests wait for events, or run in a bubble of
// testing/synctest. pgtest.Await is for what a database does not announce.
func TestTestsWaitForEvents(t *testing.T) {
	t.Parallel()
	top, seen := readme.Top(t), 0
	err := fs.WalkDir(os.DirFS(top), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		seen++
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, filepath.Join(top, name), nil, 0)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			f, _ := d.(*ast.FuncDecl)
			if f == nil || mayWait[name+" "+f.Name.Name] != "" {
				continue
			}
			for _, w := range waits(f, inBubbles(file)) {
				t.Errorf("%s:%d: %s: wait for an event", name, files.Position(w.at).Line, w.what)
			}
		}
		return nil
	})
	if err != nil || seen == 0 {
		t.Errorf("%d tests' files, %v; want some", seen, err)
	}
}

// inBubbles reports whether a file's tests run in simulated time.
func inBubbles(file *ast.File) bool {
	return slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` })
}

type wait struct {
	at   token.Pos
	what string
}

// waits finds what waits for time in code that is not in a bubble, and loops that ask again.
func waits(code ast.Node, bubble bool) (all []wait) {
	add := func(n ast.Node, what string) { all = append(all, wait{n.Pos(), what}) }
	ast.Inspect(code, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			p, _ := n.X.(*ast.Ident)
			if p != nil && p.Name == "time" && !bubble && slices.Contains([]string{"Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}, n.Sel.Name) {
				add(n, "time."+n.Sel.Name)
			}
		case *ast.BasicLit:
			if strings.Contains(n.Value, "pg_"+"sleep") {
				add(n, "pg_"+"sleep")
			}
		case *ast.ForStmt:
			// Arithmetic, and what reads to an end, is no question.
			questions := without(calls(n.Cond), "len", "min", "max", "int", "int64", "Next", "Scan")
			all := append(calls(n.Cond), calls(n.Body)...)
			reads := len(all) > len(without(all, "Accept", "Decode", "Next", "Read", "Scan", "Wait")) || receives(n.Body)
			// So is what counts, what makes a slice shorter, and what calls nothing.
			ends := n.Post != nil || n.Cond != nil && (slices.Contains(calls(n.Cond), "len") || len(n.Body.List) > 0 && calls(n.Body) == nil)
			if len(questions) > 0 || !reads && !ends {
				add(n, "a loop that asks again")
			}
		case *ast.RangeStmt:
			if n.Key == nil && leaves(n.Body) {
				add(n, "a loop that tries again")
			}
		}
		return true
	})
	return all
}

// calls lists the names of the functions that code calls.
func calls(code ast.Node) (names []string) {
	if code == nil {
		return nil
	}
	ast.Inspect(code, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			switch f := c.Fun.(type) {
			case *ast.Ident:
				names = append(names, f.Name)
			case *ast.SelectorExpr:
				names = append(names, f.Sel.Name)
			default:
				names = append(names, fmt.Sprintf("%T", f))
			}
		}
		return true
	})
	return names
}

func without(names []string, some ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(some, name) })
}

// receives reports whether a loop's body waits for a channel.
func receives(body ast.Node) (does bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectStmt: // with a default, it waits for nothing
			return !slices.ContainsFunc(n.Body.List, func(s ast.Stmt) bool { return s.(*ast.CommClause).Comm == nil })
		case *ast.UnaryExpr:
			does = does || n.Op == token.ARROW
		}
		return true
	})
	return does
}

// leaves reports whether a loop's body may end the loop.
func leaves(body ast.Node) (may bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.SelectStmt, *ast.SwitchStmt:
			return false
		case *ast.ReturnStmt:
			may = true
		case *ast.BranchStmt:
			may = may || n.Tok == token.BREAK
		}
		return true
	})
	return may
}

func TestWaitsAreFound(t *testing.T) {
	t.Parallel()
	for code, want := range map[string][]string{
		`time.Sleep(d)`: {"time.Sleep"},
		`select { case <-time.After(d): case <-done: }`:                {"time.After"},
		`q("SELECT pg_` + `sleep(1)")`:                                 {"pg_" + "sleep"},
		`for !there() { }`:                                             {"a loop that asks again"},
		`for time.Now().Before(end) { try() }`:                         {"a loop that asks again"},
		`for { if there() { break } }`:                                 {"a loop that asks again"},
		`for slow := false; !slow; { _, slow = s.slow.get(id) }`:       {"a loop that asks again"},
		`for n := 0; n < 3; { mu.Lock(); n = len(q); mu.Unlock() }`:    {"a loop that asks again"},
		`for !done { }`:                                                {"a loop that asks again"},
		`for !done { select { case <-c: done = true; default: f() } }`: {"a loop that asks again"},
		`for range 10 { if there() { return } }`:                       {"a loop that tries again"},
		`for !done { <-c; done = there() }`:                            nil,
		`for n > 1 { n /= 2 }`:                                         nil,
		`for range 10 { try() }`:                                       nil,
		`for i := next(); i < n; i = next() { try(i) }`:                nil,
		`for rows.Next() { rows.Scan(&x) }`:                            nil,
		`for len(rest) > 0 { rest = rest[1:] }`:                        nil,
		`for { c, err := l.Accept(); if err != nil { return }; c() }`:  nil,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p; func f() {"+code+"}", 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range waits(file, false) {
			got = append(got, w.what)
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", code, diff)
		}
	}
}
