/*
 * The protocol of a deletion: one plant, one client's key, two services that work on
 * requests with that key, and a database with a synchronous standby. Spin visits
 * every state that these can reach and looks for one in which an answer is a lie:
 * the assertions, each with a name. README.md tells what they mean, how to run it,
 * and what each switch (#ifdef) leaves out.
 *
 * Attempts are not counted. One whose answer was lost is open, and an open attempt
 * may run at any time, again and again, or never: so it stands for all that there may
 * be, and for whatever may hold them back.
 */

#ifndef TURNS
#define TURNS 3 /* so often a key can be refused here; 3 at most */
#endif

#define FREE    0
#define DELETED 1
#define REFUSED 2

typedef Database {
	bool plant;     /* is there */
	bool reference; /* to the plant, which can't be deleted then */
	byte ledger[3]  /* what it has of the key, by turn */
};

Database primary;
Database standby; /* as far as the log has come */

/* Open attempts: in each of these sets a bit for each turn. Which set they are in
 * depends on what was answered since. */
#define BIT(t) (1 << (t))
byte mine[2];  /* those of the request that service 0 or 1 is working on */
byte doubtful; /* those of requests that ended without a no */
byte closed;   /* those that the client takes for dead, since it was told no */

bool lateRefusal; /* a refusal whose answer was lost: it may be written at any time */

bool working[2];   /* the service has a request */
bool abandoned[2]; /* whose client has gone: it will ask somebody else */
bool over[2];      /* and was told no there, so nothing must come of this request */
byte known[2];     /* the next turn when the request came */
bool connected[2]; /* the service is still connected to the database that it read from */

bool told204; /* a client was told that the plant is deleted */

#define isDeleted(db) (db.ledger[0] == DELETED || db.ledger[1] == DELETED || db.ledger[2] == DELETED)
/* The first turn behind all that have an entry. Without a deletion, all of these are refused. */
#define next(db) (db.ledger[2] != FREE -> 3 : (db.ledger[1] != FREE -> 2 : (db.ledger[0] != FREE -> 1 : 0)))
#define least(a, b) ((a) < (b) -> (a) : (b))

inline copy(from, to) {
	to.plant = from.plant;
	to.reference = from.reference;
	to.ledger[0] = from.ledger[0];
	to.ledger[1] = from.ledger[1];
	to.ledger[2] = from.ledger[2]
}

/* A commit that is acknowledged is on the standby, with all that came before it. What
 * is open for a turn that is taken there can't do anything any more: to leave it out
 * saves states. */
#define VACANT ((standby.ledger[0] == FREE) * BIT(0) + (standby.ledger[1] == FREE) * BIT(1) + (standby.ledger[2] == FREE) * BIT(2))

inline acknowledge() {
	copy(primary, standby);
	mine[0] = mine[0] & VACANT;
	mine[1] = mine[1] & VACANT;
	doubtful = doubtful & VACANT;
	closed = closed & VACANT;
	lateRefusal = lateRefusal && !isDeleted(standby)
}

/* An attempt of turn t removes the plant and writes its entry in one transaction. It
 * is rolled back if there is an entry already. */
#define succeeds(t) (primary.plant && !primary.reference && primary.ledger[t] == FREE)

inline delete(t) {
	assert(!told204);            /* LATE: a retry deletes a plant that came back */
	assert(!isDeleted(primary)); /* TWICE: a key deletes twice */
	primary.plant = false;
	primary.ledger[t] = DELETED;
	printf("the plant is deleted, turn %d\n", t)
}

/* What a service learns of that. */
#ifndef FORGET_LEDGER
#define finds(db) isDeleted(db)
#else
#define finds(db) false
#endif

#define refusable (!finds(primary) && next(primary) < TURNS)

inline refuse() {
	printf("a refusal is written, turn %d\n", next(primary));
	if
	:: next(primary) == 0 -> primary.ledger[0] = REFUSED
	:: next(primary) == 1 -> primary.ledger[1] = REFUSED
	:: next(primary) == 2 -> primary.ledger[2] = REFUSED
	fi
}

/* The request ends. What is open of it stays open. */
inline end() {
	if
	:: over[r] -> closed = closed | mine[r]
	:: else -> doubtful = doubtful | mine[r]
	fi;
	mine[r] = 0;
	working[r] = false;
	abandoned[r] = false;
	over[r] = false;
	known[r] = 0;
	connected[r] = false;
	turn = 0;
	taken = false
}

/* 503, 504, or the service is killed. */
inline giveUp() {
	printf("%d: no definite answer\n", r);
	end()
}

inline answer204() {
	assert(isDeleted(standby)); /* FALSE204: not deleted by this key, or not for good */
	told204 = told204 || !abandoned[r];
	printf("%d: 204\n", r);
	end()
}

/* Who is told no takes it that nothing comes any more of this request, nor of those
 * that it replaces: those that ended in doubt, and one that the client gave up. */
inline answerNo() {
	if
	:: abandoned[r] -> skip
	:: else ->
		printf("%d: 404 or 409\n", r);
		assert(!isDeleted(primary)); /* FALSE404: the key has deleted the plant */
		closed = closed | doubtful | mine[r];
		doubtful = 0;
		mine[r] = 0;
		over[1 - r] = abandoned[1 - r]
	fi;
	end()
}

proctype Service(byte r) {
	byte turn;  /* of the next attempt */
	bool taken; /* the attempt met an entry of its turn */

idle:
	atomic {
		printf("%d: a request comes\n", r);
		working[r] = true;
		known[r] = next(primary);
		goto attempt
	}

attempt:
	atomic {
		if
		:: succeeds(turn) -> /* and the answer arrives */
			assert(!over[r]); /* CLOSED */
			delete(turn);
			acknowledge();
			answer204();
			goto idle
		:: !succeeds(turn) ->
			taken = primary.plant && !primary.reference;
			turn = 0;
			goto look
		:: true ->
			printf("%d: the answer to an attempt is lost, turn %d\n", r, turn);
			mine[r] = mine[r] | BIT(turn);
			turn = 0;
			goto ask
		:: true -> giveUp(); goto idle
		fi
	}

	/* The attempt did nothing: the ledger may know why. */
look:
	atomic {
		if
		:: taken -> taken = false; goto ask
		:: !taken && finds(primary) -> connected[r] = true; goto settle
		:: !taken && !finds(primary) -> goto no
		:: true -> giveUp(); goto idle
		fi
	}

	/* The attempt may have deleted the plant, or may do so yet. */
ask:
	atomic {
		if
		:: finds(primary) -> connected[r] = true; goto settle
		:: !finds(primary) ->
			connected[r] = true;
			turn = next(primary);
			/* A request does not pass a refusal that was not there when it came: its
			 * client may be the one who was told. */
			if
#ifndef PASS_ANY_REFUSAL
			:: turn > known[r] -> giveUp(); goto idle
#endif
			:: turn == TURNS -> giveUp(); goto idle
			:: else -> goto next
			fi
		:: true -> giveUp(); goto idle
		fi
	}

	/* Another attempt, in the first turn that was not refused. What was read has to
	 * outlast a failover, like all that is told: a refusal that is lost would leave its
	 * turn to somebody else. */
next:
	atomic {
		if
#ifndef PASS_UNSETTLED
		:: turn == 0 -> connected[r] = false; goto attempt
		:: turn > 0 && connected[r] -> acknowledge(); connected[r] = false; goto attempt
		:: turn > 0 && !connected[r] -> goto ask
#else
		:: connected[r] = false; goto attempt
#endif
		:: true -> giveUp(); goto idle
		fi
	}

	/* What was read is told when it is on the standby: so a commit of our own has to
	 * be acknowledged, on the same connection. */
settle:
	atomic {
		if
#ifndef TELL_UNSETTLED
		:: connected[r] -> acknowledge(); answer204(); goto idle
		:: !connected[r] -> goto ask
#else
		:: true -> answer204(); goto idle
#endif
		:: true -> giveUp(); goto idle
		fi
	}

	/* The reason is found. The refusal is written before it is told. */
no:
	atomic {
		if
#ifndef FORGET_REFUSAL
		:: finds(primary) -> connected[r] = true; goto settle
		:: refusable -> refuse(); acknowledge(); answerNo(); goto idle
		:: refusable ->
			printf("%d: the answer to a refusal is lost\n", r);
			lateRefusal = true;
			goto ask
#else
		:: true -> answerNo(); goto idle
#endif
		:: true -> giveUp(); goto idle
		fi
	}
}

inline late(t) { printf("what was held back arrives: an attempt, turn %d\n", t) }

/* Everything that the services can't see. */
proctype World() {
	do
	/* The store's own people. */
	:: atomic { !primary.plant -> primary.plant = true; printf("the plant is inserted, or restored\n") }
	:: atomic { primary.plant && !primary.reference -> primary.plant = false; printf("the plant is deleted by SQL\n") }
	:: atomic { primary.plant && !primary.reference -> primary.reference = true; printf("a reference is added\n") }
	:: atomic { primary.reference -> primary.reference = false; printf("the reference is removed\n") }

	/* What was held back. */
	:: atomic { succeeds(0) && (closed & BIT(0)) -> late(0); assert(false) } /* CLOSED */
	:: atomic { succeeds(1) && (closed & BIT(1)) -> late(1); assert(false) } /* CLOSED */
	:: atomic { succeeds(2) && (closed & BIT(2)) -> late(2); assert(false) } /* CLOSED */
	:: atomic { succeeds(0) && ((doubtful | mine[0] | mine[1]) & BIT(0)) -> late(0); delete(0) }
	:: atomic { succeeds(1) && ((doubtful | mine[0] | mine[1]) & BIT(1)) -> late(1); delete(1) }
	:: atomic { succeeds(2) && ((doubtful | mine[0] | mine[1]) & BIT(2)) -> late(2); delete(2) }
	:: atomic { lateRefusal && refusable -> printf("what was held back arrives:\n"); refuse() }

	/* The clients. */
	:: atomic { working[0] && !abandoned[0] -> abandoned[0] = true; printf("0: its client gives up\n") }
	:: atomic { working[1] && !abandoned[1] -> abandoned[1] = true; printf("1: its client gives up\n") }

	/* The standby, and a failover to it. */
	:: atomic { acknowledge(); printf("the standby catches up\n") }
	:: atomic {
		printf("failover\n");
		assert(!told204 || isDeleted(standby)); /* FALSE204 */
		copy(standby, primary);
		connected[0] = false;
		connected[1] = false;
		known[0] = least(known[0], next(primary));
		known[1] = least(known[1], next(primary))
	   }

	/* The ledger's horizon: so long after, nobody retries, and nothing is open. */
	:: atomic {
		!working[0] && !working[1] ->
		printf("the key is purged\n");
		primary.ledger[0] = FREE;
		primary.ledger[1] = FREE;
		primary.ledger[2] = FREE;
		acknowledge();
		doubtful = 0;
		closed = 0;
		lateRefusal = false;
		told204 = false
	   }
#ifdef PURGE_PIECEMEAL
	/* A refusal is older than the deletion that followed it. */
	:: atomic {
		!working[0] && !working[1] && doubtful == 0 && closed == 0 && !lateRefusal && primary.ledger[0] == REFUSED ->
		printf("a refusal is purged\n");
		primary.ledger[0] = FREE;
		acknowledge()
	   }
#endif
	od
}

init {
	atomic { run Service(0); run Service(1); run World() }
}
