#include "team_size.h"

#include <algorithm>

namespace octavo {

void TeamSize::saw(int64_t wall_ns, int64_t work_ns) {
    if (most_ == 1 || wall_ns <= 0) return;
    wall_ns_ += wall_ns;
    work_ns_ += std::max<int64_t>(work_ns, 0);
    since_trial_ns_ = std::min(since_trial_ns_ + wall_ns, LONGEST_PAUSE_NS);
    if (wall_ns_ < (++steps_ < WINDOW_STEPS ? LONG_WINDOW_NS : WINDOW_NS)) return;
    const double parallelism = double(work_ns_) / double(wall_ns_);
    wall_ns_ = work_ns_ = steps_ = 0;
    decide(parallelism);
}

void TeamSize::decide(double parallelism) {
    if (now_ != size_) {  // the end of a trial
        since_trial_ns_ = 0;
        if (parallelism > held_ * BETTER) {
            size_ = now_;
            pause_ns_ = PAUSE_NS;
            changes_++;
        } else {
            now_ = size_;
            pause_ns_ = std::min(2 * pause_ns_, LONGEST_PAUSE_NS);
            direction_ = -direction_;
        }
        return;
    }
    if (parallelism >= FINE * size_) {  // nobody disturbs: all threads, as soon as a trial agrees
        direction_ = 1;
        if (size_ == most_) pause_ns_ = PAUSE_NS;
    } else if (size_ == most_) {
        direction_ = -1;
    }
    if (since_trial_ns_ >= pause_ns_) begin_trial(parallelism);
}

void TeamSize::begin_trial(double parallelism) {
    if (size_ == 1) direction_ = 1;
    if (size_ == most_ && direction_ > 0) return;
    const int step = std::max(1, size_ / 4);
    const int next = std::min(most_, std::max(1, size_ + direction_ * step));
    if (next < parallelism * BETTER) return;  // so few threads cannot do more, were they never disturbed
    held_ = parallelism;
    now_ = next;
}

}  // namespace octavo
