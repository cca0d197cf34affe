/* The claim route's protocol as the code has it: API server, kubelet, container runtime, and one or two instances of
 * the agent, around one or two GPUs. What is modelled, what isn't, and the rules in words: README.md beside this file.
 *
 * Claim 0 has a name (its UID stays when it is deallocated and allocated again, to the same GPU or another) and is used
 * by the pods 0 and 2; claim 1 is used by pod 1. A set of GPUs or of pods is a bit mask. Each d_step is one step of
 * somebody; a process of the agent is named after the function that it stands for. Any process of the agent can be
 * killed or stopped between two steps.
 *
 * A rule is a switch, on unless -DR_X=0. The bounds (how often what may happen) are switches, too.
 */

/* ---- rules */
#ifndef R_FILE1
#define R_FILE1 1   /* prepare.release.Releaser.end */
#endif
#ifndef R_KREF
#define R_KREF 1    /* prepare.checks.Checks._end_if_over */
#endif
#ifndef R_DRAIN
#define R_DRAIN 1   /* prepare.preparer.Preparer._prepare, by way of Releaser.end */
#endif
#ifndef R_WATCH
#define R_WATCH 1   /* prepare.sightings.Sightings, prepare.pod_notes.PodNotes, app.watch.claim_watch, app.files.file_watch */
#endif
#ifndef R_ROW1
#define R_ROW1 1    /* prepare.preparer.Preparer._commit */
#endif
#ifndef R_HEAL
#define R_HEAL 1    /* prepare.healing.Healer */
#endif
#ifndef R_SAME
#define R_SAME 1    /* prepare.preparer.Preparer._read_same, prepare.runs.Runs */
#endif
#ifndef R_BOOT
#define R_BOOT 1    /* prepare.preparer.Preparer._stands, prepare.checks.Checks.restore_files */
#endif
#ifndef R_LOCK
#define R_LOCK 1    /* lease.lease.Lease.shared and acquire */
#endif
#ifndef R_KILL
#define R_KILL 1    /* lease.lease.Lease._end_holders */
#endif
#ifndef R_YIELD
#define R_YIELD 1   /* prepare.manager.ClaimManager.yield_, dra.takeover.TakeOver, dra.router, dra.calls.Caller */
#endif
#ifndef R_ALIAS
#define R_ALIAS 1   /* prepare.record.aliases_for */
#endif
#ifndef R_STRAY
#define R_STRAY 1   /* prepare.strays.Strays, prepare.checks.Checks._write_file */
#endif

/* ---- bounds */
#ifndef GPUS
#define GPUS 1
#endif
#ifndef PODS
#define PODS 3      /* 2: without pod 2, so that claim 0 isn't shared; 1: without claim 1 as well */
#endif
#ifndef INSTANCES
#define INSTANCES 1
#endif
#ifndef DELETES
#define DELETES 2   /* forced deletes of pods */
#endif
#ifndef CRASHES
#define CRASHES 1   /* an instance is killed */
#endif
#ifndef STOPS
#define STOPS 0     /* an instance is stopped whole, perhaps to wake later */
#endif
#ifndef WAKES
#define WAKES 1     /* 0: it never wakes (the kubelet calls the other: one that it calls is ended by its livenessProbe) */
#endif
#ifndef BOOTS
#define BOOTS 0
#endif
#ifndef BOOTCLEAN
#define BOOTCLEAN 1 /* a reboot empties the CDI folder */
#endif
#ifndef RESTARTS
#define RESTARTS 1  /* of the kubelet */
#endif
#ifndef FORGETS
#define FORGETS 0   /* kubelet restarts that find no dra_manager_state */
#endif
#ifndef TICKS
#define TICKS 1     /* of the kubelet's reconcile loop that find a deleted pod with processes */
#endif
#ifndef DEADLINES
#define DEADLINES 1 /* of a Prepare whose pod lives */
#endif
#ifndef LOSSES
#define LOSSES 0    /* the ledger is gone when the next instance starts */
#endif
#ifndef APPENDS
#define APPENDS 1   /* a kubelet up to 1.36 appends the ids of a repeated Prepare; 0: 1.37 replaces them */
#endif
#ifndef TAKEOVERS
#define TAKEOVERS 3
#endif
#ifndef BIDES
#define BIDES 1     /* take-overs that go ahead without the active one's yielding (bound passed, heartbeat stands) */
#endif

#define CLAIM(p) ((p) == 1 -> 1 : 0)
#define OTHER(c) (1 - (c))
#define BIT(n) (1 << (n))
#define NOBODY 9
#define SAY(words) printf words
#if INSTANCES > 1
#define ASK(i) asks[i] = 1   /* for the lease: only a call that has newly come does (R_YIELD) */
#else
#define ASK(i) skip
#endif

/* ---- API server */
#define NONE 0
#define BOUND 1
#define GONE 2
byte alloc[2], reserved[2], pod[3];

/* ---- kubelet. On disk (dra_manager_state): the claim's pods and its CDI ids; in memory: prepared or not */
#define NEW 0
#define CALLING 1
#define READY 2
#define SANDBOX 3
#define RESOLVED 4
#define RUNNING 5
#define ENDED 6
#define UNPREPARING 7
#define DONE 8
#define FAILED 9
byte listed[2], ids[2], at[3], to[3], unto[2];
bool prepared[2], unprep[2];
byte flaw;          /* pods that the kubelet's own faults may have stuck */

/* ---- host: sandboxes (a pause process in the pod's cgroup), processes on GPUs, CDI files */
bool sandbox[3];
byte resolved[3], uses[3], file[2];
bool outdated[2];   /* the file is of before a reboot */

/* ---- ledger. adopted: taken over from the kubelet's list; stray: GPUs that drain for processes nobody knows */
byte row[2], rowpods[2], rowboot[2], drain[2], drainpods[2], stray, boot;
bool adopted[2];

/* ---- lease */
byte lease = 0;     /* instance 0 serves already at the beginning */

/* ---- instances. T: per instance and claim */
#define DEAD 0
#define RUNS 1
#define STOPPED 2
#define T(i, c) (2 * (i) + (c))
byte up[2], busy[2], locks[2], recovered[2] = 2, newest, turn[4];
bool mine[2], ready[2], interrupt[4], asks[2], covered[3];

byte deletes = DELETES, crashes = CRASHES, stops = STOPS, boots = BOOTS, restarts = RESTARTS, forgets = FORGETS,
  ticks = TICKS, deadlines = DEADLINES, losses = LOSSES, takeovers = TAKEOVERS, bides = BIDES;
bool calm;

#define alive(i) (up[i] == RUNS)
#define fenced(i) (lease == (i) && mine[i])
#define serves(i) (alive(i) && ready[i] && fenced(i))
#define anyone (up[0] != DEAD || up[1] != DEAD)
#define called_instance (up[newest] != DEAD -> newest : 1 - newest)
/* A call is served where it came to, or passed on by an instance that runs (R_YIELD), while its caller waits for it. */
#define reaches(p, i) (at[p] == CALLING && (to[p] == (i) || (R_YIELD && alive(to[p]))))
#define called(i, c) ((c) == 0 && (reaches(0, i) || reaches(2, i)) || (c) == 1 && reaches(1, i))
#define unpreparing(i, c) (unprep[c] && (unto[c] == (i) || (R_YIELD && alive(unto[c]))))
#define lives(p) (sandbox[p] || uses[p] != 0)
#define living(m) ((((m) & 1) && lives(0) -> 1 : 0) | (((m) & 2) && lives(1) -> 2 : 0) | (((m) & 4) && lives(2) -> 4 : 0))
#define seen_on(g, but) \
  (!((but) & 1) && (uses[0] & (g)) || !((but) & 2) && (uses[1] & (g)) || !((but) & 4) && (uses[2] & (g)))
#define holds(c, g) (((row[c] | drain[c]) & (g)) != 0)
#define obstacle(c, g) (holds(OTHER(c), g) || (stray & (g)) != 0)

/* What changes something outside, with the lease looked at under the same lock. Between the look and the deed an
 * instance can be stopped: inside the lock with R_LOCK, so that nobody takes the lease meanwhile. */
#if INSTANCES == 1
#define FENCED(deed) if :: d_step { alive(i) && fenced(i) -> deed } :: d_step { alive(i) && !fenced(i) -> LEAVE }; goto idle fi
#elif R_LOCK
#define FENCED(deed) \
  if :: d_step { alive(i) && fenced(i) -> locks[i]++ }; d_step { alive(i) -> locks[i]--; deed } \
     :: d_step { alive(i) && !fenced(i) -> LEAVE }; goto idle fi
#else
#define FENCED(deed) \
  if :: alive(i) && fenced(i) -> d_step { alive(i) -> deed } :: d_step { alive(i) && !fenced(i) -> LEAVE }; goto idle fi
#endif
/* What a process of the agent leaves behind at its end: nothing. */
#define LEAVE busy[i]--; if :: turn[T(i, c)] == MINE -> turn[T(i, c)] = 0 :: else fi; \
  if :: MINE == UNPREPARES -> interrupt[T(i, c)] = 0 :: else fi; \
  want = 0; pods = 0; known = 0; left = 0; device = 0; clash = 0
#define PREPARES 1
#define UNPREPARES 2
#define CHECKS 3

#define RETURN(p, state) at[p] = state; to[p] = 0; covered[p] = 0
#define REFUSE1(p) if :: reaches(p, i) && covered[p] -> RETURN(p, FAILED); SAY(("agent %d: refuses Prepare of pod %d\n", i, p)) :: else fi
#define REFUSE if :: c == 0 -> REFUSE1(0); REFUSE1(2) :: else -> REFUSE1(1) fi
#define COVER1(p) if :: reaches(p, i) -> covered[p] = 1 :: else fi
#define COVER if :: c == 0 -> COVER1(0); COVER1(2) :: else -> COVER1(1) fi
#define ANSWER1(p) \
  if :: reaches(p, i) && (covered[p] || !R_SAME) -> RETURN(p, READY); prepared[c] = 1; SAY(("agent %d: answers Prepare of pod %d\n", i, p)); \
        ids[c] = (APPENDS -> ids[c] | want : want) \
     :: else fi
#define ANSWER if :: c == 0 -> ANSWER1(0); ANSWER1(2) :: else -> ANSWER1(1) fi

/* prepare.release.Releaser.end. R_FILE1: file, look, commit, in this order; from the removal on nobody can start with
 * the file, and who resolved it before has a sandbox that the look sees. R_WATCH: the pods are all that were ever seen
 * with the claim, and on the device any pod counts but those of claims that hold it, too. */
#define LOOK d_step { alive(i) -> known = rowpods[c] | (R_WATCH -> listed[c] : 0); left = living(known); device = (R_WATCH && seen_on(row[c], \
  known | ((row[OTHER(c)] & row[c]) -> rowpods[OTHER(c)] : 0))); SAY(("agent %d: looks for pods %d of claim %d, finds %d\n", i, known, c, left)) }
#define END_COMMIT(drains) FENCED( \
  if :: (drains) && (left || device) -> drain[c] = drain[c] | row[c]; drainpods[c] = drainpods[c] | left :: else fi; \
  SAY(("agent %d: ends the hold of claim %d, draining %d\n", i, c, drain[c])); row[c] = 0; rowpods[c] = 0; rowboot[c] = 0; adopted[c] = 0; left = 0; known = 0; device = 0)
#define UNLINK FENCED(file[c] = 0; SAY(("agent %d: removes the CDI file of claim %d\n", i, c)))
#if R_FILE1
#define END_HOLD(drains) UNLINK; LOOK; END_COMMIT(drains)
#else
#define END_HOLD(drains) LOOK; UNLINK; END_COMMIT(drains)
#endif

#define LOCALS byte want, pods, known, left; bool device, clash

/* prepare.runs.Runs and prepare.preparer.Preparer.prepare, for one claim at one instance. A newer call waits for a GET
 * of its own: it is only answered when it was there before the GET (R_SAME). */
#define MINE PREPARES
#define GET want = (reserved[c] != 0 -> alloc[c] : 0); pods = reserved[c]; COVER
proctype Prepare(byte i; byte c) {
  LOCALS;
idle:
  if
  :: d_step { serves(i) && turn[T(i, c)] == 0 && called(i, c) && !unpreparing(i, c) ->
       turn[T(i, c)] = MINE; busy[i]++; GET }
  :: d_step { /* R_HEAL, prepare.healing.Healer._missing: the kubelet believes prepared what has no row */
       R_HEAL && serves(i) && turn[T(i, c)] == 0 && !called(i, c) && !unpreparing(i, c) && (row[c] == 0 || adopted[c]) &&
       (ids[c] & alloc[c]) != 0 && (reserved[c] & listed[c]) != 0 && !obstacle(c, alloc[c]) ->
       turn[T(i, c)] = MINE; busy[i]++; GET; SAY(("agent %d: prepares claim %d by itself\n", i, c)) }
  fi;
begin:
  {
    if
    :: d_step { alive(i) && want == 0 -> REFUSE; LEAVE }; goto idle
    :: alive(i) && want != 0 && row[c] != 0 && row[c] != want ->
       END_HOLD(R_DRAIN)   /* R_DRAIN: an undo leaves the old GPU draining, too */
    :: d_step { alive(i) && want != 0 && row[c] == want && !adopted[c] && file[c] != 0 && (!R_BOOT || rowboot[c] == boot) ->
         pods = pods | listed[c] };
       FENCED(rowpods[c] = rowpods[c] | (row[c] != 0 -> pods : 0));
       goto answer
    :: alive(i) && want != 0 &&
         (row[c] == 0 || row[c] == want && (adopted[c] || file[c] == 0 || R_BOOT && rowboot[c] != boot))
    fi;
wait:
    if
    :: d_step { alive(i) && ready[i] && !obstacle(c, want) && alloc[c] == want && reserved[c] != 0 ->
         pods = pods | reserved[c] }   /* the second GET, after the look for holds in the way */
    :: d_step { alive(i) && interrupt[T(i, c)] -> REFUSE; LEAVE }; goto idle
    :: d_step { alive(i) && (R_YIELD && !ready[i] || !fenced(i)) -> LEAVE }; goto idle
    :: d_step { alive(i) && ready[i] && (R_SAME || !obstacle(c, want)) && (alloc[c] != want || reserved[c] == 0) -> GET };
       goto begin
    :: d_step { alive(i) && ready[i] && obstacle(c, want) && !called(i, c) -> LEAVE }; goto idle
    fi;
#if !R_ROW1
    FENCED(file[c] = want; outdated[c] = 0; SAY(("agent %d: writes the CDI file of claim %d: %d\n", i, c, want)));
    if
    :: alive(i) && alloc[c] == want && reserved[c] != 0
    :: alive(i) && (alloc[c] != want || reserved[c] == 0) -> FENCED(file[c] = row[c]; REFUSE; LEAVE); goto idle
    fi;
#endif
    d_step { alive(i) -> pods = pods | listed[c] };
    FENCED(
      if
      :: obstacle(c, want) -> clash = 1
      :: else -> row[c] = want; rowboot[c] = boot; adopted[c] = 0; rowpods[c] = rowpods[c] | pods; SAY(("agent %d: commits claim %d on %d\n", i, c, want))
      fi);
    if
    :: d_step { clash -> clash = 0 }; goto wait
    :: else
    fi;
#if R_ROW1
    FENCED(file[c] = want; outdated[c] = 0; SAY(("agent %d: writes the CDI file of claim %d: %d\n", i, c, want)));
#endif
answer:
    /* The claim's turn ends before the answer goes out. */
    if
    :: d_step { alive(i) && interrupt[T(i, c)] -> REFUSE; LEAVE }; goto idle
    :: d_step { alive(i) && !interrupt[T(i, c)] -> turn[T(i, c)] = 0 };
       FENCED(ANSWER; LEAVE)
    fi;
    goto idle
  } unless { up[i] == DEAD };
  if :: d_step { true -> LEAVE } fi;
  goto idle
}
#undef MINE

/* prepare.manager.ClaimManager.unprepare: ends the claim's waiting run, outwaits a working one. */
#define MINE UNPREPARES
proctype Unprepare(byte i; byte c) {
  LOCALS;
idle:
  if :: d_step { serves(i) && unpreparing(i, c) && !interrupt[T(i, c)] -> interrupt[T(i, c)] = 1; busy[i]++ } fi;
  {
    if
    :: d_step { alive(i) && turn[T(i, c)] == 0 && !ready[i] -> LEAVE }; goto idle
    :: d_step { alive(i) && turn[T(i, c)] == 0 && ready[i] -> turn[T(i, c)] = MINE; interrupt[T(i, c)] = 0 }
    fi;
    if
    :: alive(i) && row[c] != 0 -> END_HOLD(1)
    :: alive(i) && row[c] == 0 -> UNLINK
    fi;
    d_step { alive(i) -> turn[T(i, c)] = 0 };
    FENCED(
      if
      :: unpreparing(i, c) -> SAY(("agent %d: answers Unprepare of claim %d\n", i, c)); unprep[c] = 0; unto[c] = 0; prepared[c] = 0; ids[c] = 0;
         /* The kubelet drops the claim with all its pods, also one that joined meanwhile: its own fault. */
         if :: c == 0 -> flaw = flaw | (listed[0] & ((pod[0] == BOUND -> 1 : 0) | (pod[2] == BOUND -> 4 : 0)))
            :: else -> flaw = flaw | (listed[1] & (pod[1] == BOUND -> 2 : 0)) fi;
         listed[c] = 0
      :: else
      fi;
      LEAVE);
    goto idle
  } unless { up[i] == DEAD };
  if :: d_step { true -> LEAVE } fi;
  goto idle
}
#undef MINE

/* prepare.checks.Checks._end_if_over, of the sweep and of a conflict alike: a live GET, then, R_KREF, the kubelet's
 * list, both with the claim's turn. (It begins where it may find something; more would change nothing.) */
#define MINE CHECKS
#define over(c) (row[c] != 0 && (alloc[c] != row[c] || adopted[c]))
#define unlisted(c) (!R_KREF || listed[c] == 0)
proctype Check(byte i; byte c) {
  LOCALS;
idle:
  if :: d_step { serves(i) && turn[T(i, c)] == 0 && over(c) && unlisted(c) -> turn[T(i, c)] = MINE; busy[i]++; SAY(("agent %d: check: claim %d is over\n", i, c)) } fi;
  {
    if
    :: d_step { alive(i) && !unlisted(c) -> LEAVE }; goto idle
    :: alive(i) && unlisted(c)
    fi;
    END_HOLD(1);
    if :: d_step { true -> LEAVE } fi;
    goto idle
  } unless { up[i] == DEAD };
  if :: d_step { true -> LEAVE } fi;
  goto idle
}
#undef MINE

/* prepare.drains.DrainWatch.look: a drain ends by its processes alone. */
#define DRAINED(c) (drain[c] != 0 && living(drainpods[c]) == 0 && \
  !(R_WATCH && seen_on(drain[c], (row[0] & drain[c] -> rowpods[0] : 0) | (row[1] & drain[c] -> rowpods[1] : 0))))
proctype Drains(byte i) {
  do
  :: d_step { serves(i) && DRAINED(0) -> drain[0] = 0; drainpods[0] = 0; SAY(("agent %d: claim 0 has drained\n", i)) }
  :: d_step { serves(i) && DRAINED(1) -> drain[1] = 0; drainpods[1] = 0; SAY(("agent %d: claim 1 has drained\n", i)) }
  :: d_step { serves(i) && stray != 0 && !seen_on(stray, (row[0] & stray -> rowpods[0] : 0) | (row[1] & stray -> rowpods[1] : 0)) ->
       stray = 0; SAY(("the ledger is lost\n")) }
  od
}

/* R_WATCH: the claim's pods are noted at every change: of the claim in the API (app.watch.claim_watch), and of the kubelet's
 * list (app.files.file_watch), which at the latest is read when the next instance takes over. */
#define NOTED(c, p) if :: R_WATCH && row[c] != 0 && (serves(0) || serves(1)) -> rowpods[c] = rowpods[c] | BIT(p) :: else fi

/* One claim's part of prepare.manager.ClaimManager.recover: a row for what the kubelet believes prepared and has none
 * (R_STRAY), then the file from the row, but for one that was taken in over another claim's hold; no other files. */
#define RECOVER(c) \
  if :: R_STRAY && row[c] == 0 && listed[c] != 0 && ids[c] != 0 && !((row[OTHER(c)] & ids[c]) && !adopted[OTHER(c)]) -> \
        row[c] = ids[c]; adopted[c] = 1; rowpods[c] = listed[c]; rowboot[c] = boot \
     :: else -> skip fi; \
  if :: row[c] != 0 && R_WATCH -> rowpods[c] = rowpods[c] | listed[c] :: else fi; \
  if :: R_STRAY && adopted[c] && holds(OTHER(c), row[c]) && file[c] == 0 -> skip \
     :: else -> file[c] = row[c]; \
        if :: R_BOOT -> outdated[c] = 0; rowboot[c] = boot :: else fi fi
/* Devices that pods are on without any record: what they use drains (prepare.strays.Strays._drains). */
#define STRAYS(g) if :: R_STRAY && !(stray & (g)) && !((drain[0] | drain[1]) & (g)) && seen_on(g, \
  ((row[0] | row[1]) & (g) -> listed[0] | listed[1] | rowpods[0] | rowpods[1] : 0)) -> stray = stray | (g) :: else fi

#define NOTE_ALL if :: R_WATCH && row[0] != 0 -> rowpods[0] = rowpods[0] | listed[0] :: else fi; \
  if :: R_WATCH && row[1] != 0 -> rowpods[1] = rowpods[1] | listed[1] :: else fi
#define BECOME(i) takeovers--; lease = i; mine[i] = 1; SAY(("agent %d: takes the lease\n", i)); recovered[i] = 0; ready[i] = 0; asks[i] = 0
#define HANG_UP(c) unprep[c] = 0; unto[c] = 0
#define LOSE1(i, p) if :: at[p] == CALLING && to[p] == (i) -> RETURN(p, FAILED) :: else fi
#define LOSE2(i, c) if :: unprep[c] && unto[c] == (i) -> HANG_UP(c) :: else fi
/* The kubelet's calls to it end with its sockets, its locks with its files. */
#define DIE(i) LOSE1(i, 0); LOSE1(i, 1); LOSE1(i, 2); LOSE2(i, 0); LOSE2(i, 1); SAY(("agent %d: dies\n", i)); up[i] = DEAD; mine[i] = 0; ready[i] = 0; locks[i] = 0; asks[i] = 0; recovered[i] = 2; \
  turn[T(i, 0)] = 0; turn[T(i, 1)] = 0; interrupt[T(i, 0)] = 0; interrupt[T(i, 1)] = 0
/* Without R_YIELD any open call makes an instance ask, not only one that has newly come. */
#define WANTS(i) (asks[i] || !R_YIELD && (at[0] == CALLING && to[0] == (i) || at[1] == CALLING && to[1] == (i) || \
  at[2] == CALLING && to[2] == (i) || unprep[0] && unto[0] == (i) || unprep[1] && unto[1] == (i)))

/* dra.takeover.TakeOver and lease.lease.Lease.acquire of instance i, beside instance j. */
proctype Instance(byte i; byte j) {
  do
  :: d_step { up[i] == DEAD && busy[i] == 0 && (!calm || !anyone) -> up[i] = RUNS; newest = i; ASK(i); SAY(("agent %d: starts, registers\n", i)) }
  :: d_step { alive(i) && !fenced(i) && busy[i] == 0 && takeovers > 0 && (lease == NOBODY || lease == i || up[lease] == DEAD) ->
       BECOME(i) }
  :: d_step { alive(i) && fenced(i) && recovered[i] == 0 -> RECOVER(0); recovered[i] = 1 }
  :: d_step { alive(i) && fenced(i) && recovered[i] == 1 -> RECOVER(1); STRAYS(1);
       if :: GPUS > 1 -> STRAYS(2) :: else fi; NOTE_ALL; recovered[i] = 2; ready[i] = 1; asks[i] = 0; SAY(("agent %d: active; rows %d %d, files %d %d\n", i, row[0], row[1], file[0], file[1])) }
#if INSTANCES > 1
  :: d_step { alive(i) && !fenced(i) && ready[i] -> ready[i] = 0 }
  :: d_step { alive(i) && !fenced(i) && WANTS(i) && takeovers > 0 && serves(j) -> ready[j] = 0; SAY(("agent %d: yields\n", j)) }   /* asks it to yield */
  :: d_step { alive(i) && !fenced(i) && busy[i] == 0 && WANTS(i) && takeovers > 0 && alive(j) && fenced(j) && !ready[j] &&
       recovered[j] == 2 && busy[j] == 0 && locks[j] == 0 -> BECOME(i) }
  :: d_step { bides > 0 && alive(i) && !fenced(i) && busy[i] == 0 && (WANTS(i) || up[j] == STOPPED) && takeovers > 0 &&
       fenced(j) && locks[j] == 0 -> bides--; BECOME(i) }
  :: d_step { R_KILL && R_LOCK && alive(i) && !fenced(i) && busy[i] == 0 && takeovers > 0 && locks[j] != 0 && up[j] == STOPPED ->
       DIE(j) }
  :: d_step { alive(i) && fenced(i) && !ready[i] && recovered[i] == 2 && busy[i] == 0 && !(alive(j) && WANTS(j)) && takeovers > 0 ->
       BECOME(i) }   /* it yielded to one that never came */
  :: d_step { !calm && stops > 0 && alive(i) && (WAKES || newest != i) -> stops--; up[i] = STOPPED; SAY(("agent %d: STOPPED\n", i)) }
  :: d_step { WAKES && up[i] == STOPPED -> up[i] = RUNS; SAY(("agent %d: wakes\n", i)) }
#endif
  :: d_step { !calm && crashes > 0 && up[i] != DEAD -> crashes--; DIE(i) }
  :: d_step { !calm && losses > 0 && up[0] == DEAD && up[1] == DEAD && busy[0] == 0 && busy[1] == 0 -> losses--;
       row[0] = 0; row[1] = 0; rowpods[0] = 0; rowpods[1] = 0; adopted[0] = 0; adopted[1] = 0;
       drain[0] = 0; drain[1] = 0; drainpods[0] = 0; drainpods[1] = 0; stray = 0 }
  od
}

/* The kubelet's worker of pod p, and the runtime. */
proctype Worker(byte p) {
  do
  :: d_step { (at[p] == NEW || at[p] == FAILED) && pod[p] == BOUND && anyone && (reserved[CLAIM(p)] & BIT(p)) ->
       listed[CLAIM(p)] = listed[CLAIM(p)] | BIT(p); NOTED(CLAIM(p), p);
       if
       :: prepared[CLAIM(p)] -> at[p] = READY; SAY(("kubelet: pod %d needs no Prepare\n", p));
          if :: ids[CLAIM(p)] != alloc[CLAIM(p)] -> flaw = flaw | BIT(p) :: else fi
       :: else -> at[p] = CALLING; to[p] = called_instance; ASK(to[p]); SAY(("kubelet: Prepare of claim %d for pod %d to agent %d\n", CLAIM(p), p, to[p]))
       fi }
  :: d_step { at[p] == CALLING && pod[p] == GONE -> RETURN(p, ENDED) }
  :: d_step { at[p] == CALLING && pod[p] == BOUND && deadlines > 0 -> deadlines--; RETURN(p, FAILED); SAY(("kubelet: deadline of pod %d\n", p)) }
  :: d_step { at[p] == READY -> at[p] = SANDBOX; sandbox[p] = 1; SAY(("kubelet: sandbox of pod %d\n", p)) }
  :: d_step { at[p] == SANDBOX && (listed[CLAIM(p)] & BIT(p)) && ids[CLAIM(p)] != 0 &&
       (R_ALIAS -> (file[CLAIM(p)] & ids[CLAIM(p)]) != 0 : (file[CLAIM(p)] & ids[CLAIM(p)]) == ids[CLAIM(p)]) ->
       resolved[p] = file[CLAIM(p)] & ids[CLAIM(p)]; at[p] = RESOLVED; SAY(("runtime: pod %d resolves %d\n", p, resolved[p])); assert(!outdated[CLAIM(p)]) }
  :: d_step { at[p] == RESOLVED -> at[p] = RUNNING; uses[p] = resolved[p]; resolved[p] = 0; SAY(("runtime: pod %d RUNS on %d\n", p, uses[p]));
       assert((uses[0] & uses[1]) == 0); assert((uses[2] & uses[1]) == 0) }
  :: d_step { pod[p] == GONE && (at[p] <= RUNNING && at[p] != CALLING || at[p] == FAILED) ->
       uses[p] = 0; sandbox[p] = 0; resolved[p] = 0; at[p] = ENDED; SAY(("kubelet: processes of pod %d have ended\n", p)) }
  :: d_step { at[p] == ENDED && !(listed[CLAIM(p)] & BIT(p)) -> at[p] = DONE }
  :: d_step { at[p] == ENDED && (listed[CLAIM(p)] & BIT(p)) && listed[CLAIM(p)] != BIT(p) ->
       listed[CLAIM(p)] = listed[CLAIM(p)] & ~BIT(p); at[p] = DONE }
  :: d_step { at[p] == ENDED && listed[CLAIM(p)] == BIT(p) && !unprep[CLAIM(p)] && anyone ->
       at[p] = UNPREPARING; unprep[CLAIM(p)] = 1; unto[CLAIM(p)] = called_instance; ASK(unto[CLAIM(p)]); SAY(("kubelet: Unprepare of claim %d to agent %d\n", CLAIM(p), unto[CLAIM(p)])) }
  :: d_step { at[p] == UNPREPARING && !unprep[CLAIM(p)] -> at[p] = ENDED }
  :: d_step { ticks > 0 && !calm && pod[p] == GONE && (listed[CLAIM(p)] & BIT(p)) && at[p] >= READY && at[p] <= RUNNING &&
       !unprep[CLAIM(p)] && anyone -> ticks--; SAY(("kubelet: reconciles pod %d\n", p));   /* the reconcile loop doesn't look at processes */
       if
       :: listed[CLAIM(p)] == BIT(p) -> unprep[CLAIM(p)] = 1; unto[CLAIM(p)] = called_instance; ASK(unto[CLAIM(p)]); SAY(("kubelet: Unprepare of claim %d to agent %d\n", CLAIM(p), unto[CLAIM(p)]))
       :: else -> listed[CLAIM(p)] = listed[CLAIM(p)] & ~BIT(p)
       fi }
  od
}

#define FORGET(p) if :: at[p] == CALLING || at[p] == READY || at[p] == FAILED -> RETURN(p, NEW) \
  :: at[p] == UNPREPARING -> at[p] = ENDED :: else fi
#define REBOOT(p) sandbox[p] = 0; uses[p] = 0; resolved[p] = 0; if :: at[p] == UNPREPARING -> at[p] = ENDED \
  :: at[p] == ENDED || at[p] == DONE || at[p] == NEW :: else -> RETURN(p, NEW) fi

/* Scheduler, people, and what happens to the machine; then calm, and the end. */
#define BIND(p, g) \
  :: d_step { !calm && pod[p] == NONE && alloc[CLAIM(p)] == 0 && alloc[OTHER(CLAIM(p))] != (g) -> \
       alloc[CLAIM(p)] = g; reserved[CLAIM(p)] = BIT(p); pod[p] = BOUND; NOTED(CLAIM(p), p); SAY(("API: pod %d bound, claim %d on %d\n", p, CLAIM(p), g)) }
#define JOIN(p) \
  :: d_step { !calm && pod[p] == NONE && alloc[CLAIM(p)] != 0 -> \
       reserved[CLAIM(p)] = reserved[CLAIM(p)] | BIT(p); pod[p] = BOUND; NOTED(CLAIM(p), p); SAY(("API: pod %d joins claim %d\n", p, CLAIM(p))) }
#define DELETE(p) \
  :: d_step { !calm && deletes > 0 && pod[p] == BOUND -> deletes--; pod[p] = GONE; \
       reserved[CLAIM(p)] = reserved[CLAIM(p)] & ~BIT(p); \
       if :: reserved[CLAIM(p)] == 0 -> alloc[CLAIM(p)] = 0 :: else fi; SAY(("API: pod %d force-deleted, claim %d now on %d\n", p, CLAIM(p), alloc[CLAIM(p)])) }
/* Every pod that is there runs, on the GPU of its claim, with row and file; every GPU that should be free is. With two
 * GPUs the kubelet's own fault with one pod is another's, too, which waits for it. */
#define WELL(p) if :: pod[p] == BOUND && (flaw & (GPUS > 1 -> 7 : BIT(p))) == 0 -> \
  assert(at[p] == RUNNING && uses[p] == alloc[CLAIM(p)] && row[CLAIM(p)] == alloc[CLAIM(p)] && file[CLAIM(p)] == alloc[CLAIM(p)]) \
  :: else fi
#define FREE(c) if :: alloc[c] == 0 && !living(drainpods[c] | rowpods[c]) -> \
  assert(row[c] == 0 && drain[c] == 0 && stray == 0 && file[c] == 0) :: else fi

active proctype World() {
  byte n;
  atomic {
    up[0] = RUNS; mine[0] = 1; ready[0] = 1;
    run Worker(0);
#if PODS > 1
    run Worker(1);
#endif
#if PODS > 2
    run Worker(2);
#endif
   
    for (n : 0 .. INSTANCES - 1) {
      run Instance(n, INSTANCES - 1 - n); run Drains(n);
      run Prepare(n, 0); run Prepare(n, 1); run Unprepare(n, 0); run Unprepare(n, 1); run Check(n, 0); run Check(n, 1)
    };
    n = 0
  };
  do
  BIND(0, 1) DELETE(0)
#if PODS > 1
  BIND(1, 1) DELETE(1)
#endif

#if PODS > 2
  BIND(2, 1) JOIN(2) DELETE(2)
#endif
#if GPUS > 1
  BIND(0, 2)
#if PODS > 1
  BIND(1, 2)
#endif
#if PODS > 2
  BIND(2, 2)
#endif
#endif
  :: d_step { !calm && restarts > 0 -> restarts--; SAY(("kubelet: restarts\n")); prepared[0] = 0; prepared[1] = 0; HANG_UP(0); HANG_UP(1);
       FORGET(0); FORGET(1); FORGET(2);
       if :: forgets > 0 -> forgets--; listed[0] = 0; listed[1] = 0; ids[0] = 0; ids[1] = 0 :: else fi }
  :: d_step { !calm && boots > 0 -> boots--; boot++; SAY(("REBOOT\n")); DIE(0); DIE(1); lease = NOBODY;
       REBOOT(0); REBOOT(1); REBOOT(2); prepared[0] = 0; prepared[1] = 0; HANG_UP(0); HANG_UP(1);
       if :: BOOTCLEAN -> file[0] = 0; file[1] = 0 :: else -> outdated[0] = (file[0] != 0); outdated[1] = (file[1] != 0) fi }
  :: d_step { !calm -> calm = 1; deletes = 0; crashes = 0; stops = 0; boots = 0; restarts = 0; forgets = 0; ticks = 0; losses = 0; SAY(("calm\n")) }
  :: timeout -> break
  od;
  SAY(("the end: pods %d %d %d, alloc %d %d, rows %d %d, draining %d %d, files %d %d\n", at[0], at[1], at[2], alloc[0], alloc[1], row[0], row[1], drain[0], drain[1], file[0], file[1]));
  if
  :: takeovers == 0   /* not judged: it may have needed one more */
  :: else -> WELL(0); WELL(1); WELL(2); FREE(0); FREE(1)
  fi
}
