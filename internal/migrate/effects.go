package migrate

// An Effect is what one statement does to tables that exist before its migration.
type Effect struct {
	Does string
	// Locks are those that it takes on existing tables, and holds until its
	// transaction ends.
	Locks []Lock
	// Safer is set if the statement reads or writes the whole table under its
	// lock, and names the form that does not.
	Safer string
	// Manual is the page of PostgreSQL's manual on it, or on its locks.
	Manual string
}

// A Lock is one on a table.
type Lock struct {
	Mode  string `json:"mode"`  // as the manual writes it, as in "ACCESS EXCLUSIVE"
	Table string `json:"table"` // with its schema
	// Since is the first major version of PostgreSQL that takes it, 0 if all do.
	Since int `json:"-"`
}

const manual = "https://www.postgresql.org/docs/current/"

// effects are those of the Up of every migration, one for each statement. A test
// runs the migrations and compares the locks with what PostgreSQL really takes.
func effects() map[int64][]Effect {
	makesTable := Effect{Does: "makes a table", Manual: "sql-createtable.html"}
	comments := Effect{Does: "comments on the table just made", Manual: "sql-comment.html"}
	makesFunction := Effect{Does: "makes a function", Manual: "sql-createfunction.html"}
	closesFunctions := Effect{Does: "takes a right on what was just made from everybody", Manual: "sql-revoke.html"}
	addsTrigger := Effect{
		Does:   "adds a trigger, in the catalogue only: no row is read",
		Locks:  []Lock{{Mode: "SHARE ROW EXCLUSIVE", Table: "public.plants"}},
		Manual: "explicit-locking.html#LOCKING-TABLES",
	}
	return map[int64][]Effect{
		1: {
			{Does: "makes the table plants; one that exists is looked at in the catalogue only, and kept as it is", Manual: "sql-do.html"},
		},
		2: {
			makesTable, comments, comments, comments, comments,
			makesTable, comments, comments, comments, comments, comments, comments, comments,
		},
		3: {
			makesFunction, makesFunction, makesFunction, makesFunction, makesFunction, makesFunction, makesFunction, closesFunctions,
			addsTrigger,
			{Does: "adds a trigger, under the same lock", Manual: addsTrigger.Manual},
		},
		4: {
			makesTable, comments,
			makesTable, comments, comments, comments,
			makesTable, comments, comments, comments, comments, comments,
			makesFunction, makesFunction, closesFunctions,
		},
		5: {
			makesTable, comments, comments, comments, comments,
		},
		6: {
			{Does: "takes from others what default privileges gave them of the new tables and functions", Manual: "sql-revoke.html"},
			{
				Does: "grants rights to plantstore_app, in the catalogue only",
				Locks: []Lock{
					{Mode: "ACCESS SHARE", Table: "public.api_tokens", Since: 18},
					{Mode: "ACCESS SHARE", Table: "public.goose_db_version", Since: 18},
					{Mode: "ACCESS SHARE", Table: "public.plant_deletions", Since: 18},
					{Mode: "ACCESS SHARE", Table: "public.plants", Since: 18},
				},
				Manual: "sql-grant.html",
			},
		},
	}
}

// A Verdict is how much a statement disturbs those who use the database.
type Verdict string

// From harmless to worst. A lock that blocks is held briefly: the statement
// itself changes the catalogue only, and waits for the lock no longer than the
// lock timeout.
const (
	Safe         Verdict = "safe"
	BlocksWrites Verdict = "blocks writes briefly"
	BlocksAll    Verdict = "blocks reads and writes briefly"
	Rewrites     Verdict = "rewrites or scans the table"
	Unknown      Verdict = "unknown"
)

// worse returns the worse of two verdicts.
func worse(a, b Verdict) Verdict {
	for _, v := range []Verdict{Unknown, Rewrites, BlocksAll, BlocksWrites} {
		if a == v || b == v {
			return v
		}
	}
	return Safe
}

// verdict returns what a lock means to others, by the manual's table of
// conflicting modes.
func (l Lock) verdict() Verdict {
	switch l.Mode {
	case "ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE":
		return Safe
	case "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE":
		return BlocksWrites
	case "ACCESS EXCLUSIVE":
		return BlocksAll
	}
	return Unknown
}
