// What one core can do: the two inner loops of dyads, written for one model only, with sizes known to the compiler.
//
//   g++ -O3 -march=native -ffast-math limit.cpp -o limit && ./limit
//
// It prints nanoseconds per dyad, CPU time of the thread, minimum over repetitions, as one line of JSON:
//   {"sgd": {rank: ns}, "double": {rank: ns}, "single": {rank: ns}}
// `benchmarks/speed.py` compiles it, runs it and divides the times of dyads by these.

#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

constexpr int LABELS = 5;

double checksum = 0;  // Sums of results are added here, so that the compiler cannot leave the work out.

double thread_seconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

template <class Work>
double best_nanoseconds(size_t n_dyads, int repetitions, Work work) {
    double best = 1e9;
    for (int i = 0; i < repetitions; i++) {
        double began = thread_seconds();
        checksum += work();
        best = std::min(best, thread_seconds() - began);
    }
    return best * 1e9 / n_dyads;
}

// ---------------------------------------------------------------------------- stochastic gradient descent with AdaGrad
//
// Bilinear scores s_y = sum_k a_ky b_ky + a_Ky + b_Ky, log loss, penalty lambda / 2 |a|^2 + lambda / 2 |b|^2.
// A dyad takes a step -rate * g / sqrt(sum of g^2) of all weights of its row and its column. Labels fill the lanes of
// one vector register: 5 of 8 are used, the others have probability zero.

typedef float Lanes __attribute__((vector_size(32)));

Lanes exp_of(Lanes x) {  // 2^n p(r) with x = n log 2 + r; a polynomial of degree 6, relative error 1e-7
    x = x < -87.0f ? Lanes{} - 87.0f : x;
    Lanes n = _mm256_round_ps(x * 1.44269504f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    Lanes r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Lanes p = Lanes{} + 1.9875691500e-4f;
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f}) p = p * r + c;
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return (p * r * r + r + 1.0f) * (Lanes)power;
}

Lanes inverse_root(Lanes x) {  // the processor's estimate and one step of Newton's method
    Lanes y = _mm256_rsqrt_ps(x);
    return y * (1.5f - 0.5f * x * y * y);
}

__m128 folded(Lanes x, __m128 (*pair)(__m128, __m128)) {  // x_0 o ... o x_7 in lane 0, in three steps
    __m128 half = pair(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = pair(half, _mm_movehl_ps(half, half));
    return pair(half, _mm_shuffle_ps(half, half, 1));
}
inline __m128 plus(__m128 a, __m128 b) { return a + b; }
inline __m128 greater(__m128 a, __m128 b) { return _mm_max_ps(a, b); }

struct Pairs {
    std::vector<int> row, col;
    std::vector<int8_t> label;
};

Pairs random_pairs(size_t n, int n_rows, int n_cols) {
    const size_t ahead = 8;  // prefetching reads codes of later dyads
    std::mt19937 random(0);
    Pairs pairs{std::vector<int>(n + ahead), std::vector<int>(n + ahead), std::vector<int8_t>(n + ahead)};
    for (size_t i = 0; i < n; i++) {
        pairs.row[i] = random() % n_rows;
        pairs.col[i] = random() % n_cols;
        pairs.label[i] = random() % LABELS;
    }
    return pairs;
}

template <int RANK>
struct Side {  // weights of the rows or columns, each (RANK + 1, 8), and the sums of their squared gradients
    static constexpr int SIZE = RANK + 1;
    Lanes *weights, *squares;

    Side(int n, unsigned seed) {
        size_t bytes = ((size_t)n * SIZE * sizeof(Lanes) + 63) / 64 * 64;
        weights = (Lanes*)std::aligned_alloc(64, bytes);
        squares = (Lanes*)std::aligned_alloc(64, bytes);
        std::mt19937 random(seed);
        std::normal_distribution<float> normal(0, 0.1f);
        for (size_t i = 0; i < (size_t)n * SIZE; i++) {
            for (int y = 0; y < 8; y++) weights[i][y] = normal(random);
            squares[i] = Lanes{} + 0.1f;
        }
    }
    ~Side() { std::free(weights), std::free(squares); }
    void prefetch(int code) {
        __builtin_prefetch(weights + (size_t)code * SIZE);
        __builtin_prefetch(squares + (size_t)code * SIZE);
    }
};

template <int RANK>
float epoch(const Pairs& pairs, size_t n, Side<RANK>& rows, Side<RANK>& cols, float rate, float lambda) {
    alignas(32) static const float one_hot[LABELS][8] = {{1}, {0, 1}, {0, 0, 1}, {0, 0, 0, 1}, {0, 0, 0, 0, 1}};
    const Lanes beyond = {0, 0, 0, 0, 0, -1e30f, -1e30f, -1e30f};  // lanes that are no label
    float total = 0;
    for (size_t i = 0; i < n; i++) {
        Lanes* __restrict a = rows.weights + (size_t)pairs.row[i] * (RANK + 1);
        Lanes* __restrict b = cols.weights + (size_t)pairs.col[i] * (RANK + 1);
        Lanes* __restrict a2 = rows.squares + (size_t)pairs.row[i] * (RANK + 1);
        Lanes* __restrict b2 = cols.squares + (size_t)pairs.col[i] * (RANK + 1);
        rows.prefetch(pairs.row[i + 4]);
        cols.prefetch(pairs.col[i + 4]);
        Lanes s = a[RANK] + b[RANK] + beyond;
        for (int k = 0; k < RANK; k++) s += a[k] * b[k];
        s = exp_of(s - _mm_cvtss_f32(folded(s, greater)));
        float z = _mm_cvtss_f32(folded(s, plus));
        Lanes g = s * (1 / z) - *(const Lanes*)one_hot[pairs.label[i]];
        for (int k = 0; k <= RANK; k++) {
            Lanes x = a[k], y = b[k];
            Lanes gx = (k < RANK ? g * y : g) + lambda * x, gy = (k < RANK ? g * x : g) + lambda * y;
            a2[k] += gx * gx;
            b2[k] += gy * gy;
            a[k] = x - rate * gx * inverse_root(a2[k]);
            b[k] = y - rate * gy * inverse_root(b2[k]);
        }
        total += z;
    }
    return total;
}

template <int RANK>
double sgd() {  // the shape of ML-1M
    const size_t n = 1000000;
    const int n_rows = 6040, n_cols = 3706;
    Pairs pairs = random_pairs(n, n_rows, n_cols);
    Side<RANK> rows(n_rows, 1), cols(n_cols, 2);
    return best_nanoseconds(n, 5, [&] { return epoch<RANK>(pairs, n, rows, cols, 0.1f, 0.01f); });
}

// ----------------------------------------------------------------- gradient, curvature and Cholesky factor of entities
//
// Stereotype with one basis: s_y = a_y + b_y + phi_y u.v, with the biases a and the latent weights u of a row, and b
// and v of its partner. With p = softmax(s), m = sum_y p_y phi_y and c_y = p_y (phi_y - m), the curvature of a row's
// block (a, u) is the sum over its dyads of
//
//   bias x bias: diag(p) - p p^T,   bias x latent: c v^T,   latent x latent: (sum_y c_y phi_y) v v^T.

template <class Real, int RANK>
struct Entity {
    static constexpr int SIZE = LABELS + RANK;
    // Sums by parts of the block. One column more than needed: at a stride of 16 g++ vectorises the outer loop, badly.
    alignas(64) Real latent[RANK][RANK + 1], cross[LABELS][RANK], bias[LABELS][LABELS], gradient[SIZE];
    Real M[SIZE][SIZE];

    [[gnu::noinline]] void add(const Real* x, const Real* partner, int label, const Real* phi) {
        Real v[RANK];  // a copy, which no sum can alias
        for (int k = 0; k < RANK; k++) v[k] = partner[LABELS + k];
        Real dot = 0;
        for (int k = 0; k < RANK; k++) dot += x[LABELS + k] * v[k];
        Real p[LABELS], c[LABELS], largest = -1e30, z = 0, mean = 0, variance = 0;
        for (int y = 0; y < LABELS; y++) {
            p[y] = x[y] + partner[y] + phi[y] * dot;
            largest = std::max(largest, p[y]);
        }
        for (int y = 0; y < LABELS; y++) z += p[y] = std::exp(p[y] - largest);
        for (int y = 0; y < LABELS; y++) mean += (p[y] *= 1 / z) * phi[y];
        for (int y = 0; y < LABELS; y++) variance += (c[y] = p[y] * (phi[y] - mean)) * phi[y];
        for (int y = 0; y < LABELS; y++) {
            gradient[y] += p[y] - (y == label);
            for (int q = 0; q < LABELS; q++) bias[y][q] -= p[y] * p[q];
            bias[y][y] += p[y];
            for (int k = 0; k < RANK; k++) cross[y][k] += c[y] * v[k];
        }
        for (int k = 0; k < RANK; k++) gradient[LABELS + k] += (mean - phi[label]) * v[k];
        for (int k = 0; k < RANK; k++) {
            Real weight = variance * v[k];
            for (int j = 0; j < RANK; j++) latent[k][j] += weight * v[j];
        }
    }

    void factor() {  // Cholesky of the curvature and a prior of precision one: L in the lower triangle of M
        for (int i = 0; i < SIZE; i++) {
            for (int j = 0; j <= i; j++)
                M[i][j] = i < LABELS ? bias[i][j] : j < LABELS ? cross[j][i - LABELS] : latent[i - LABELS][j - LABELS];
            M[i][i] += 1;
        }
        for (int j = 0; j < SIZE; j++) {
            Real pivot = M[j][j];
            for (int k = 0; k < j; k++) pivot -= M[j][k] * M[j][k];
            M[j][j] = std::sqrt(std::max(pivot, (Real)1e-6));
            for (int i = j + 1; i < SIZE; i++) {
                Real sum = M[i][j];
                for (int k = 0; k < j; k++) sum -= M[i][k] * M[j][k];
                M[i][j] = sum / M[j][j];
            }
        }
    }
};

template <class Real, int RANK>
double entities() {  // the shape of ML-100K u3
    using E = Entity<Real, RANK>;
    const size_t n = 80000;
    const int n_rows = 943, n_cols = 1682;
    const Real phi[LABELS] = {-1.4, -0.7, 0, 0.7, 1.4};
    Pairs pairs = random_pairs(n, n_rows, n_cols);
    std::vector<Real> rows(n_rows * E::SIZE), cols(n_cols * E::SIZE);
    std::mt19937 random(1);
    std::normal_distribution<Real> normal(0, 0.3);
    for (Real& x : rows) x = normal(random);
    for (Real& x : cols) x = normal(random);
    return best_nanoseconds(n, 9, [&] {
        double total = 0;
        for (int e = 0; e < n_rows; e++) {
            E entity{};
            for (size_t i = n * e / n_rows; i < n * (e + 1) / n_rows; i++)
                entity.add(&rows[e * E::SIZE], &cols[pairs.col[i] * E::SIZE], pairs.label[i], phi);
            entity.factor();
            total += entity.gradient[0] + entity.M[E::SIZE - 1][E::SIZE - 1];
        }
        return total;
    });
}

int main() {
    std::printf("{\"sgd\": {\"5\": %.2f, \"16\": %.2f, \"32\": %.2f}", sgd<5>(), sgd<16>(), sgd<32>());
    std::printf(", \"double\": {\"10\": %.2f, \"16\": %.2f, \"32\": %.2f}", entities<double, 10>(),
                entities<double, 16>(), entities<double, 32>());
    std::printf(", \"single\": {\"10\": %.2f, \"16\": %.2f, \"32\": %.2f}}\n", entities<float, 10>(),
                entities<float, 16>(), entities<float, 32>());
    return std::isnan(checksum);
}
