package doctor

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"plantstore/internal/migrate"
)

// shippedStatements returns what the migrations of this binary send. To read them takes
// longer than to look at a database.
var shippedStatements = sync.OnceValue(func() []string {
	statements, err := migrate.Service().Statements(context.Background())
	if err != nil {
		panic(err) // the embedded files can always be read
	}
	return statements
})

// shippedArguments returns the named arguments of the queries that are the same in
// every situation: what the migrations make.
var shippedArguments = sync.OnceValue(func() pgx.NamedArgs {
	var names, parameters, bodies, volatilities, settings, triggers, remakes []string
	var asOwner []bool
	for _, f := range shippedBy(shippedStatements()) {
		names, parameters, bodies = append(names, f.name), append(parameters, f.parameters()), append(bodies, f.body())
		volatilities = append(volatilities, f.volatility())
		settings, asOwner = append(settings, strings.Join(f.settings(), "\n")), append(asOwner, f.asOwner())
		triggers, remakes = append(triggers, f.definition()), append(remakes, f.remake())
	}
	tables, tableRemakes := shippedTables(shippedStatements())
	return pgx.NamedArgs{"tables": tables, "table_remakes": tableRemakes,
		"names": names, "parameters": parameters, "bodies": bodies, "volatilities": volatilities, "settings": settings, "as_owner": asOwner,
		"triggers": triggers, "remakes": remakes}
})

// A shippedFunction is the SQL that makes a function, and the trigger on plants
// that has its name, as the migrations have it.
type shippedFunction struct {
	name     string
	function string
	revoke   string // takes the function from everybody; empty if nothing does
	trigger  string // empty if there is none
}

// shippedBy finds the functions that the statements of the migrations make, in
// their order. What a later statement makes again takes the place of the first.
func shippedBy(statements []string) []shippedFunction {
	var all []shippedFunction
	named := func(name string) *shippedFunction {
		i := slices.IndexFunc(all, func(s shippedFunction) bool { return s.name == name })
		if i < 0 {
			i = len(all)
			all = append(all, shippedFunction{name: name})
		}
		return &all[i]
	}
	// A comment may come before the statement.
	function := regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?FUNCTION public\.(\w+)\(`)
	trigger := regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?TRIGGER (\w+) `)
	revoke := regexp.MustCompile(`(?m)^REVOKE EXECUTE ON FUNCTION (?s:.*) FROM PUBLIC;`)
	signature := regexp.MustCompile(`public\.(\w+)\([^)]*\)`)
	for _, sql := range statements {
		if m := function.FindStringSubmatchIndex(sql); m != nil {
			named(sql[m[2]:m[3]]).function = sql[m[0]:]
		}
		if m := trigger.FindStringSubmatchIndex(sql); m != nil {
			named(sql[m[2]:m[3]]).trigger = sql[m[0]:]
		}
		for _, m := range signature.FindAllStringSubmatch(revoke.FindString(sql), -1) {
			named(m[1]).revoke = "REVOKE EXECUTE ON FUNCTION " + m[0] + " FROM PUBLIC;"
		}
	}
	return all
}

// remake is SQL that makes function and trigger what they were.
func (s shippedFunction) remake() string {
	create := regexp.MustCompile(`^CREATE (FUNCTION|TRIGGER)`)
	var sql []string
	for _, statement := range []string{s.function, s.revoke, s.trigger} {
		if statement != "" {
			sql = append(sql, create.ReplaceAllString(statement, "CREATE OR REPLACE $1"))
		}
	}
	return strings.Join(sql, "\n")
}

// definition is the trigger as pg_get_triggerdef writes it; empty if there is none.
func (s shippedFunction) definition() string {
	sql := strings.Replace(s.trigger, "CREATE OR REPLACE", "CREATE", 1)
	return strings.TrimSuffix(strings.Join(strings.Fields(sql), " "), ";")
}

// parameters are those of the function, as pg_get_function_identity_arguments
// writes them.
func (s shippedFunction) parameters() string {
	_, after, _ := strings.Cut(s.function, "(")
	parameters, _, _ := strings.Cut(after, ")")
	return parameters
}

// body is the function's text, as pg_proc.prosrc has it.
func (s shippedFunction) body() string {
	parts := strings.SplitN(s.function, "$$", 3)
	if len(parts) < 3 {
		return ""
	}
	return parts[1]
}

// asOwner tells whether the function runs with the rights of its owner.
func (s shippedFunction) asOwner() bool { return strings.Contains(s.function, "\nSECURITY DEFINER") }

// volatility is that of the function, as pg_proc.provolatile has it.
func (s shippedFunction) volatility() string {
	declared, _, _ := strings.Cut(s.function, "$$")
	switch {
	case regexp.MustCompile(`(?m)^LANGUAGE .*\bIMMUTABLE\b`).MatchString(declared):
		return "i"
	case regexp.MustCompile(`(?m)^LANGUAGE .*\bSTABLE\b`).MatchString(declared):
		return "s"
	}
	return "v"
}

// settings are those that the function pins, as pg_proc.proconfig has them, in
// lower case and in order.
func (s shippedFunction) settings() []string {
	var all []string
	for _, set := range regexp.MustCompile(`(?m)^SET (\w+) = (.*)$`).FindAllStringSubmatch(s.function, -1) {
		all = append(all, strings.ToLower(set[1]+"="+strings.Trim(set[2], "'")))
	}
	slices.Sort(all)
	return all
}

// shippedTables finds the tables that the statements of the migrations make, in their
// order, with SQL that makes each anew, for the service's role, too. That of the
// checksums is left out: the service does without.
func shippedTables(statements []string) (names, remakes []string) {
	table := regexp.MustCompile(`(?m)^CREATE TABLE public\.(\w+)`)
	for _, sql := range statements {
		m := table.FindStringSubmatchIndex(sql)
		if m == nil || sql[m[2]:m[3]] == "plantstore_migrations" {
			continue
		}
		name, remake := sql[m[2]:m[3]], sql[m[0]:]
		for _, r := range promised(statements) {
			if r.object == "public."+name || r.object == "SEQUENCE public."+name+"_id_seq" {
				remake += "\n" + r.grant()
			}
		}
		if name == "plant_shapes" { // entries know their shapes by number: a new one must not have an old number
			remake += "\nSELECT setval('public.plant_shapes_id_seq', (SELECT coalesce(max(d.shape), 0) + 1 FROM public.plant_deletions d), false);"
		}
		names, remakes = append(names, name), append(remakes, remake)
	}
	return names, remakes
}
