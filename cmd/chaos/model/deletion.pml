/*
 * The protocol of a deletion: one plant, one key, two services that work on requests with
 * that key, and a database with a synchronous standby. Spin visits every state that these
 * can reach, and looks for one in which an answer is a lie. The assertions have names. Each
 * switch leaves out one rule, and Spin has to find a lie then:
 *
 *	FORGET_REFUSAL     a refusal is answered without being recorded
 *	FORGET_LOST        likewise, without a key of the client's, after a lost attempt
 *	FORGET_LEDGER      a refusal is answered although the key has an entry
 *	NO_CONSTRAINT      an attempt ignores the entry of the key
 *	BELIEVE_CUT_SHORT  an answer does not wait for the standby
 *	ANSWER_EARLY       what was read is answered before the standby has it
 *
 * Attempts are not counted. An attempt whose answer was lost is open: it may run at any
 * time, any number of times, or never. So is a refusal whose answer was lost.
 */

#define FREE    0
#define DELETED 1
#define REFUSED 2

typedef Database {
	bool plant;     /* is there */
	bool reference; /* to the plant, which can't be deleted then */
	byte entry      /* of the key, in the ledger */
};

Database primary;
Database standby; /* as far as the log has come */

bool sent;          /* the client chose the key, and may send it again. Otherwise one request has it. */
bool openAttempt;   /* of any request */
bool openRefusal;
bool lost[2];       /* an attempt of the request that service 0 or 1 works on is open */
byte answered;      /* the first definite answer: DELETED or REFUSED */

inline copy(from, to) {
	to.plant = from.plant;
	to.reference = from.reference;
	to.entry = from.entry
}

/* A commit that is acknowledged is on the standby, with all that came before it. */
inline acknowledge() { copy(primary, standby) }

inline commit() {
#ifndef BELIEVE_CUT_SHORT
	acknowledge()
#else
	skip /* the wait for the standby was cut short */
#endif
}

/* An attempt removes the plant and writes its entry in one transaction. The unique
 * constraint rolls it back if there is an entry. */
#ifndef NO_CONSTRAINT
#define succeeds (primary.plant && !primary.reference && primary.entry == FREE)
#else
#define succeeds (primary.plant && !primary.reference)
#endif

inline delete() {
	printf("the plant is deleted\n");
	assert(answered != DELETED);      /* LATE: a retry deletes a plant that came back */
	assert(answered != REFUSED);      /* CLOSED: an attempt deletes after a refusal was answered */
	assert(primary.entry != DELETED); /* TWICE: one key deletes twice */
	primary.plant = false;
	primary.entry = DELETED
}

inline refuse() {
	printf("a refusal is recorded\n");
	primary.entry = REFUSED
}

inline end() {
	lost[r] = false;
	goto idle
}

/* 503, 504, or the service is killed. */
inline giveUp() {
	printf("%d: no definite answer\n", r);
	end()
}

inline reply(answer) {
	if
	:: answer == DELETED -> printf("%d: 204\n", r)
	:: answer == REFUSED -> printf("%d: 404 or 409\n", r)
	fi;
	assert(answered == FREE || answered == answer);        /* SAME: the key gets another answer */
	assert(answer != REFUSED || primary.entry != DELETED); /* FALSE404: the key has deleted the plant */
	assert(answer != DELETED || standby.entry == DELETED); /* FALSE204: not deleted by this key, or not for good */
	answered = answer;
	end()
}

proctype Service(byte r) {
idle:
	atomic {
		(sent || r == 0 && answered == FREE && !openAttempt) -> /* the only request of a key that was not sent */
		printf("%d: a request comes\n", r)
	}

attempt:
	atomic {
		if
		:: succeeds -> /* and the answer arrives */
			delete();
			commit();
			reply(DELETED)
		:: primary.entry != FREE -> goto outcome
		:: primary.entry == FREE && !succeeds -> goto refusal
		:: true ->
			printf("%d: the answer to an attempt is lost\n", r);
			openAttempt = true;
			lost[r] = true;
			goto outcome
		:: true -> giveUp()
		fi
	}

	/* There is a reason for a refusal. It may be over when the refusal is recorded. */
refusal:
	atomic {
		if
#ifdef FORGET_REFUSAL
		:: true -> reply(REFUSED)
#endif
#ifdef FORGET_LOST
		:: !sent -> reply(REFUSED)
#endif
		:: !sent && !lost[r] -> reply(REFUSED) /* no other attempt has the key */
		:: primary.entry == FREE && (sent || lost[r]) ->
			refuse();
			commit();
			reply(REFUSED)
		:: primary.entry != FREE -> goto outcome
		:: sent || lost[r] ->
			printf("%d: the answer to a refusal is lost\n", r);
			openRefusal = true;
			goto outcome
		:: true -> giveUp()
		fi
	}

	/* What the ledger has is the answer. What was read may not be on the standby yet, so the
	 * same transaction writes something, and its commit waits. */
outcome:
	atomic {
		if
#ifndef FORGET_LEDGER
		:: primary.entry != FREE ->
#ifndef ANSWER_EARLY
			acknowledge();
#endif
			reply(primary.entry)
#else
		:: primary.entry != FREE -> reply(REFUSED)
#endif
		:: primary.entry == FREE && primary.plant -> goto attempt
		:: primary.entry == FREE && !primary.plant -> goto refusal
		:: true -> giveUp()
		fi
	}
}

/* Everything that the services can't see. */
proctype World() {
	do
	/* The store's own people. */
	:: atomic { !primary.plant -> primary.plant = true; printf("the plant is inserted, or restored\n") }
	:: atomic { primary.plant && !primary.reference -> primary.plant = false; printf("the plant is deleted by SQL\n") }
	:: atomic { primary.plant && !primary.reference -> primary.reference = true; printf("a reference is added\n") }
	:: atomic { primary.reference -> primary.reference = false; printf("the reference is removed\n") }

	/* What was held back. */
	:: atomic { openAttempt && succeeds -> printf("an attempt comes late\n"); delete() }
	:: atomic { openRefusal && primary.entry == FREE -> printf("a refusal comes late\n"); refuse() }

	/* The standby, and a failover to it. */
	:: atomic { acknowledge(); printf("the standby catches up\n") }
	:: atomic {
		printf("failover\n");
		assert(answered == FREE || answered != primary.entry || answered == standby.entry); /* LOST: a failover undoes what was answered */
		copy(standby, primary)
	   }
	od
}

init {
	atomic {
		if
		:: sent = true
		:: sent = false
		fi;
		run Service(0);
		run Service(1);
		run World()
	}
}
