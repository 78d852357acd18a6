// How many threads of a team are worth using now. Knows no thread: it sees what a step cost and names the next size.
//
// Parallelism = seconds of work / seconds of the step: what the threads did, without what they waited. On free cores
// it is near the number of threads. Where other processes take the cores it falls, for one thread that lost its
// core holds up the others; then fewer threads may do more. Which is the case is tried out, not predicted: a trial
// lasts one window, and each that gave nothing doubles the time to the next. A size that could not do more even on
// free cores is not tried: every trial costs work, and an engine whose own HTTP side takes a tenth needs none.
#pragma once
#include <cstdint>

namespace octavo {

class TeamSize {
public:
    static constexpr int64_t WINDOW_NS = 50'000'000;   // several turns of a scheduler
    static constexpr int WINDOW_STEPS = 3;             // and so many, unless they are long
    static constexpr int64_t LONG_WINDOW_NS = 300'000'000;
    static constexpr int64_t PAUSE_NS = 200'000'000;   // between trials, at first
    static constexpr int64_t LONGEST_PAUSE_NS = 10'000'000'000;
    static constexpr double FINE = 0.75;               // share of a size that its parallelism reaches on free cores
    static constexpr double BETTER = 1.1;              // a trial must gain this much

    explicit TeamSize(int most) : most_(most), size_(most), now_(most) {}

    // Threads of the next step.
    int now() const { return now_; }
    // A step of `now()` threads took `wall_ns` and did `work_ns` in all threads together.
    void saw(int64_t wall_ns, int64_t work_ns);
    int64_t changes() const { return changes_; }

private:
    void decide(double parallelism);
    void begin_trial(double parallelism);

    int most_, size_, now_;   // size_: the one in use but for trials
    int direction_ = -1;      // of the next trial
    double held_ = 0;         // parallelism of size_, when the trial began
    int64_t pause_ns_ = PAUSE_NS, since_trial_ns_ = PAUSE_NS;
    int64_t wall_ns_ = 0, work_ns_ = 0, changes_ = 0;
    int steps_ = 0;
};

}  // namespace octavo
